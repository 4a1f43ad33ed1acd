"""What `make demo` shows: a model that comes with qkv, then the lab's verdicts, and a report."""

import runpy
import sys
from pathlib import Path

from rich.console import Console

from qkv.app.cli.main import main

console = Console()
FOLDER = Path(__file__).parent
REPORT = "report.html"

console.rule("[bold]A trained model[/]  [dim]examples/05_model.py[/]", align="left")
runpy.run_path(str(FOLDER / "05_model.py"), run_name="__main__")

console.print()
console.rule("[bold]What people say about attention, tried on this machine[/]  [dim]qkv lab[/]", align="left")
sys.argv = ["qkv", "lab", "--report", REPORT, *sys.argv[1:]]
try:
    main()
except SystemExit as done:
    if done.code:
        raise

console.print()
console.rule("[bold]Next[/]", align="left")
console.print(f"look   {REPORT}: every claim with its numbers and pictures, in one file")
console.print("run    .venv/bin/qkv generate 'O Romeo' --temperature 0.8 --cache int8")
console.print("       .venv/bin/qkv attend 'To be, or not to be' --out heads.html")
console.print("       .venv/bin/qkv plan llama-3-8b --users 100 --context 4096")
console.print("       .venv/bin/python examples/01_formula.py [dim]and 02 to 06[/]")
console.print("read   src/qkv/ops/dense.py: the formula as it stands in the paper, in ten lines")
console.print("       docs/article.md: what a popular article says, and what is true")
