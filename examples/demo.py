"""All four demonstrations in a row, as `make demo` shows them."""

import runpy
from pathlib import Path

from rich.console import Console

console = Console()
FOLDER = Path(__file__).parent
PARTS = {
    "01_formula.py": "1. The formula",
    "02_masks.py": "2. Masks",
    "03_heads.py": "3. Heads",
    "04_kv_cache.py": "4. The KV cache",
}

for file, title in PARTS.items():
    console.print()
    console.rule(f"[bold]{title}[/]  [dim]examples/{file}[/]", align="left")
    runpy.run_path(str(FOLDER / file), run_name="__main__")

console.print()
console.rule("[bold]Next[/]", align="left")
console.print("read   src/qkv/ops/dense.py: the formula as it stands in the paper, in ten lines")
console.print("read   docs/article.md: what the article prints, what its code gives, what is true")
console.print("run    .venv/bin/qkv generate 'Once upon a time' --compare --model DIR")
console.print("       [dim]any Llama, Mistral, Qwen2, Qwen3 or GPT-2 folder with safetensors[/]")
console.print("check  make test")
