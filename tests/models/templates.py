"""Chat templates after the manner of well-known families, written for these tests, on the byte tokenizer."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from rlhf.models.tiny import CHAT_TEMPLATE, byte_tokenizer

CHATML_TOOLS = (
    "{% if tools %}<|im_start|>system\nTools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen 2.5: answers of tools are a user's message, neighbours in one."""
LLAMA3 = (
    "{{ '<|pad|>' }}{% for m in messages %}<|im_start|>{{ 'ipython' if m.role == 'tool' else m.role }}|\n\n"
    "{% if loop.first and tools %}You may call: {{ tools | tojson }}\n\n{% endif %}"
    "{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant|\n\n{% endif %}"
)
"""Llama 3: a mark at the very start, nothing after the token that ends a turn, tools in the first message."""
FORGETS_THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen 3: thinking is dropped from replies that a user has answered, and kept while tools are called."""
NO_SYSTEM_LATER = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('a system message must come first') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDS_OTHERWISE = CHAT_TEMPLATE.replace("<|im_end|>", "<|pad|>")
"""A turn ends with a token at which the model does not stop."""
APPENDING = {"chatml": CHAT_TEMPLATE, "chatml_tools": CHATML_TOOLS, "llama3": LLAMA3}


def tokenizer_with(template: str) -> PreTrainedTokenizerBase:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer
