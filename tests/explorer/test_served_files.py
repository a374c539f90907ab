"""The table of files."""

from __future__ import annotations

from tokenloom.explorer.served_files import served_files


def test_every_file_of_the_table_is_there_and_has_a_type():
    for path, served in served_files().items():
        assert path.startswith("/")
        assert served.content_type.startswith("text/")
    assert {"/", "/explorer.js", "/web/charts.js", "/web/uplot/uPlot.iife.min.js"} <= served_files().keys()
