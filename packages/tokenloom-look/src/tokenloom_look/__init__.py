"""Data, runs and jobs as a page (`tokenloom report`), in the browser (`tokenloom explore`), as pictures (`charts`)."""

from tokenloom_look.report.section import Chart as Chart
from tokenloom_look.report.sections import charts as charts
