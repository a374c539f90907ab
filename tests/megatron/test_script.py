"""`tokenloom.megatron.script`: a program sees what `python` itself would show it."""

from __future__ import annotations

import json

from tests.megatron.programs import ours, run

FACTS = """
import json, sys
import __main__
main = vars(__main__)
names = ("__name__", "__file__", "__spec__", "__package__", "__builtins__", "__doc__", "__cached__")
facts = {name: str(main[name]) for name in names}
facts |= {"argv": sys.argv, "first": sys.path[0], "is_main": __main__ is sys.modules["__main__"], "beside": __name__}
import beside
facts["beside"] = beside.__file__
print(json.dumps(facts))
"""


def test_a_script_sees_what_python_itself_would_show_it(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "facts.py").write_text(FACTS)
    (scripts / "beside.py").write_text("")
    (tmp_path / "link.py").symlink_to(scripts / "facts.py")
    for script in ("scripts/facts.py", "link.py"):
        arguments = (script, "--sft", "-m", "--report")
        assert json.loads(ours(*arguments, folder=tmp_path).stdout) == json.loads(
            run(*arguments, folder=tmp_path).stdout
        )
    arguments = ("-m", "facts", "a")
    assert json.loads(ours(*arguments, folder=scripts).stdout)["argv"] == [str(scripts / "facts.py"), "a"]
