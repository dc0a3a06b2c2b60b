"""A client of MCP 1.x: `mcp1_client.py URL`. Prints the tools' names and what 2 + 3 is."""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client


async def main(url):
    async with streamablehttp_client(f"{url}/mcp") as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        answer = await session.call_tool("add", {"a": 2, "b": 3})
        refused = await session.call_tool("add", {"a": 2})
    print(json.dumps([[tool.name for tool in tools.tools], answer.content[0].text, refused.isError]))


asyncio.run(main(sys.argv[1]))
