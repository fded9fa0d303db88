"""Where agents meet the tool: the skill folder that they load, and the MCP server that they call.

    skill.py        the skill folder, found and installed
    tools.py        the tools of the MCP server, one entry each; planning.py, kernels.py and emulating.py do them
    folders.py      which files they may read and write
    workers.py      the processes that they run in; worker.py is one
    resources.py    device tables and rules to read
    server.py       the protocol (extra `agent`)

Nothing else imports this package.
"""
