"""`tokenloom.megatron.install_report`."""

from __future__ import annotations

from tokenloom.megatron.install_report import InstallReport


def test_a_report_is_read_line_by_line():
    report = InstallReport(
        is_installed=True,
        version="",
        is_checked=False,
        modules={"megatron.a": "tokenloom.megatron.a", "megatron.b": "tokenloom.megatron.b"},
        loaded=("megatron.a", "megatron.b"),
        replaced=("megatron.b",),
        rebound=("train.B",),
        left=("train.Mine",),
    )
    assert str(report).splitlines() == [
        "tokenloom.megatron is installed; megatron-core: of unknown version, which tokenloom was not compared with",
        "  megatron.a is tokenloom.megatron.a (imported)",
        "  megatron.b is tokenloom.megatron.b (in the place of one that had been imported)",
        "  train.B was Megatron's and is ours",
        "  train.Mine is still Megatron's",
    ]
    report = InstallReport(is_installed=False, version=None, is_checked=True)
    assert str(report) == "tokenloom.megatron is not installed: Megatron's modules are its own"
