"""A client of MCP 2.x: `mcp2_client.py URL`. Prints the tools' names and what 2 + 3 is."""

import asyncio
import json
import sys

from mcp.client.client import Client


async def main(url):
    async with Client(f"{url}/mcp") as client:
        tools = await client.list_tools()
        answer = await client.call_tool("add", {"a": 2, "b": 3})
        refused = await client.call_tool("add", {"a": 2})
    print(json.dumps([[tool.name for tool in tools.tools], answer.content[0].text, refused.is_error]))


asyncio.run(main(sys.argv[1]))
