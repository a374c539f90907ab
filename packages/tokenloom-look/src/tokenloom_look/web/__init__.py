"""Static files of pages: chart library, styles, scripts."""
