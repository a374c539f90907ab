"""What pages are made of: the chart library, styles, scripts."""
