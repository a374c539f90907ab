"""Checks around tokenloom: whether a machine is fit (`doctor`), benchmarks stand in data (`contamination`), a loader
resumes exactly, an order is well shuffled, packs are full."""

from tokenloom_check.packing import PackingQuality, PackReport, pack_report, rank_costs
from tokenloom_check.recording import record_batch, record_checkpoint
from tokenloom_check.resume import check_resume
from tokenloom_check.resume_report import ResumeCase, ResumeReport
from tokenloom_check.shuffling import ShuffleMeasure, ShuffleQuality, shuffle_quality

__all__ = [
    "PackReport",
    "PackingQuality",
    "ResumeCase",
    "ResumeReport",
    "ShuffleMeasure",
    "ShuffleQuality",
    "check_resume",
    "pack_report",
    "rank_costs",
    "record_batch",
    "record_checkpoint",
    "shuffle_quality",
]
