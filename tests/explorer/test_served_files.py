"""The table of files."""

from __future__ import annotations

import re

from tokenloom.explorer.served_files import served_files
from tokenloom.web.assets import SCRIPTS, STYLES


def test_every_file_of_the_table_is_there_and_has_a_type():
    for path, served in served_files().items():
        assert path.startswith("/")
        assert served.content_type.startswith("text/")
    assert {"/", "/explorer.js", "/web/charts.js", "/web/uplot/uPlot.iife.min.js"} <= served_files().keys()


def test_the_page_names_what_draws_its_charts_in_order():
    page = served_files()["/"].content.decode()
    assert re.findall(r'<link rel="stylesheet" href="([^"]+)">', page) == [
        *(f"web/{name}" for name in STYLES),
        "explorer.css",
    ]
    assert re.findall(r'<script src="([^"]+)"', page) == [*(f"web/{name}" for name in SCRIPTS), "explorer.js"]


def test_the_page_names_all_modules_so_that_none_waits_for_another():
    table = served_files()
    named = re.findall(r'<link rel="modulepreload" href="([^"]+)">', table["/"].content.decode())
    assert {f"/{name}" for name in named} == {path for path in table if re.fullmatch(r"/\w+\.js", path)}


def test_every_module_that_one_of_the_page_imports_is_served():
    table = served_files()
    for path, served in table.items():
        if path.endswith(".js"):
            names = re.findall(r' from "\./([^"]+)";', served.content.decode())
            assert {f"/{name}" for name in names} <= table.keys(), path
