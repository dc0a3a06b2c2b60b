"""Replies that attack whoever looks at them: a page, a terminal, a report, a log. Each must be inert and visible."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

ELSEWHERE = "http://elsewhere.invalid"
"""Nothing may be asked from there."""
MARK = "hostile"
"""A script that runs sets a global of this name to 1, and the title of a terminal or a page to this word."""
_RUN = f"window.{MARK}=1;document.title='{MARK}';alert(1)"

HOSTILE_TEXTS: Mapping[str, str] = {
    "script": f"<script>{_RUN}</script><script src={ELSEWHERE}/a.js></script>",
    "end of a script": f"</script></style></textarea></title><script>{_RUN}</script>",
    "event of an image": f'<img src=x onerror="{_RUN}"><video><source onerror="{_RUN}"></video>',
    "event of a picture": f'<svg/onload="{_RUN}"><animate onbegin="{_RUN}" attributeName=x dur=1s></svg>',
    "event with focus": f'<input autofocus onfocus="{_RUN}"><details open ontoggle="{_RUN}">x</details>',
    "end of an attribute": f'" onmouseover="{_RUN}" style=\'position:fixed;inset:0\' x=\'"><b>',
    "frame": f'<iframe srcdoc="<script>parent.{MARK}=1</script>"></iframe><object data="{ELSEWHERE}/o"></object>',
    "page that moves": f'<meta http-equiv="refresh" content="0;url={ELSEWHERE}/"><base href="{ELSEWHERE}/">',
    "style": f"<style>@import '{ELSEWHERE}/s.css';*{{display:none}}</style><link rel=stylesheet href={ELSEWHERE}/l>",
    "form": f'<form action="{ELSEWHERE}/f"><button autofocus formaction="javascript:{_RUN}">Show</button></form>',
    "end of the table": "</pre></td></tr></table></main><h1>Runs</h1><!-- <![CDATA[ --!> <plaintext>",
    "addresses": f"[a](javascript:{_RUN}) <a href='data:text/html,<script>{_RUN}</script>'>b</a> {ELSEWHERE}/c",
    "Markdown": f"# Reward 1.0\n| a | b |\n|---|---|\n![p]({ELSEWHERE}/p.png)\n```\n---\n$$\\href{{x}}{{y}}$$",
    "markup of rich": f"[bold red]x[/bold red] [link={ELSEWHERE}]y[/link] [/] [@click=app.quit]z[/] \\[a] [",
    "templates": f"{{{{constructor.constructor('{_RUN}')()}}}} ${{1}} <%= 7*7 %> #{{7*7}} %s %n {{0.x}} {{% x %}}",
    "SQL": "'; DROP TABLE episodes; -- ' OR ''='\" \\' $$ /* COPY (SELECT 1) TO 'a' */ %",
    "shell": "$(touch owned) `touch owned` ; touch owned | & > owned \\\n!! ~ *",
    "colours and a cleared screen": "a\x1b[31mred\x1b[2J\x1b[3J\x1b[H\x1b[?1049h\x1b[?25l\x1b[8mb\x1b[0;0r c",
    "title and link": f"\x1b]0;{MARK}\x07\x1b]2;{MARK}\x1b\\\x1b]8;;{ELSEWHERE}\x1b\\click\x1b]8;;\x1b\\",
    "clipboard and answers": '\x1b]52;c;aG9zdGlsZQ==\x07\x1b[6n\x1b[c\x1b]11;?\x07\x1bP$q"p\x1b\\\x1bZ\x05',
    "through tmux": f"\x1bPtmux;\x1b\x1b]0;{MARK}\x07\x1b\\\x1bk{MARK}\x1b\\\x1b_Gi=1;AAAA\x1b\\\x1b^x\x1b\\",
    "controls of one byte": f"\x9b2J\x9d0;{MARK}\x9c\x90x\x9c\x85\x84\x8d",
    "written over": "reward 0\rreward 1\x08\x08\x089\x07\x0b\x0c\x0e\x0f\x7f\x18\x1a",
    "NUL": "before\x00after\x00",
    "forged lines": '\n2026-01-01 00:00:00 ERROR training failed\n{"update": 99, "reward/mean": 1e9}\r\nerror: disk\n',
    "other order": "\u202egnp.exe\u202c \u2066a\u2067b\u2068c\u2069 \u200f\u200e\u061c user\u202e/nimda",
    "invisible": "pass\u200bword \u200c\u200d\u2060\u2063\ufeff\u00ad\u180e\u034f\ufff9x\ufffb\U000e0041\U000e0042",
    "lines of some readers": "a\u2028b\u2029c\x85d\x1ce\x1df\x1eg",
    "halves of characters": "\ud83d \ude00\ud800 \udcff\udcc3( \ufffd\ufffe\uffff\U0010ffff e" + "\u0301" * 200,
    "one long line": "<b>" + "0123456789abcdef" * (1 << 16),
}
"""By what they try. `halves of characters` is no Unicode: it holds what a decoder leaves of broken UTF-8."""
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def unseen(text: str) -> set[str]:
    """The characters of a text that must not reach a screen as they are: controls, marks and halves."""
    return {one for one in text if one not in "\n\t" and unicodedata.category(one) in _UNSEEN}
