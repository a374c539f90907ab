"""Checks around tokenloom: whether a machine is fit (`doctor`), a loader resumes exactly, an order is well shuffled."""

from tokenloom_check.recording import record_batch, record_checkpoint
from tokenloom_check.resume import check_resume
from tokenloom_check.resume_report import ResumeCase, ResumeReport
from tokenloom_check.shuffling import ShuffleMeasure, ShuffleQuality, shuffle_quality

__all__ = [
    "ResumeCase",
    "ResumeReport",
    "ShuffleMeasure",
    "ShuffleQuality",
    "check_resume",
    "record_batch",
    "record_checkpoint",
    "shuffle_quality",
]
