"""Where agents meet the tool: the skill folder that they load, and the MCP server that they call.

skill.py     the folder, found and installed
"""
