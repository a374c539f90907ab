"""Checks around tokenloom: whether the machine is fit (`doctor`), and whether a loader resumes exactly."""

from tokenloom_check.recording import record_batch, record_checkpoint
from tokenloom_check.resume import check_resume
from tokenloom_check.resume_report import ResumeCase, ResumeReport

__all__ = ["ResumeCase", "ResumeReport", "check_resume", "record_batch", "record_checkpoint"]
