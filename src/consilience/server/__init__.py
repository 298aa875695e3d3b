"""The server: sessions over HTTP, their events as they are committed, a chat endpoint and MCP. Needs the extra `server`.

The journal is the truth. The server prepares sessions, hands them to an executor and shows committed rows; it keeps nothing in
memory that a restart would lose. Runs are on the executor's event loop, readers on that of the server.

`settings` is what the operator allows, `callers` who asks, `service` the only way from a face to store and executor; `app` is the
HTTP face.
"""
