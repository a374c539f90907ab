"""Reports (`tokenloom report`), the explorer (`tokenloom explore`) and `charts` of datasets, runs and jobs."""

from tokenloom_look.report.section import Chart as Chart
from tokenloom_look.report.sections import charts as charts
