"""Uses the client that was made of docs/openapi.json: `script.py SOCKET`. What it finds goes to standard output, as JSON."""

import json
import sys

import httpx

from lasthop_api import Client
from lasthop_api.api.ports import change_port, get_port, list_ports
from lasthop_api.api.state import get_state
from lasthop_api.models import ChangesDocument, PortPatch, PortsDocument, PortStatus, Problem

client = Client(base_url="http://lasthop", httpx_args={"transport": httpx.HTTPTransport(uds=sys.argv[1])})


def change(name, tag, dry_run=False, **fields):
    patch = PortPatch(**fields)
    return change_port.sync_detailed(name, client=client, body=patch, if_match=tag, dry_run=dry_run)


def problem(answer):
    assert isinstance(answer.parsed, Problem), answer
    return {"status": answer.status_code, "type": answer.parsed.type_, "field": answer.parsed.field or None}


tag = get_state.sync_detailed(client=client).headers["etag"]
ports = list_ports.sync(client=client)
assert isinstance(ports, PortsDocument), ports
dry = change("vm1", tag, dry_run=True, socket="other.sock")
assert isinstance(dry.parsed, ChangesDocument), dry
[step] = dry.parsed.changes
changed = change("vm1", tag, mtu=9000)
assert isinstance(changed.parsed, PortStatus), changed

found = {
    "ports": [port.name for port in ports.ports],
    "dry": [step.action, step.subject, step.name, step.disconnects],
    "mtu": changed.parsed.mtu,
    "outdated": problem(change("vm1", tag, mtu=1500)),
    "wrong": problem(change("vm1", changed.headers["etag"], mtu=3)),
    "missing": problem(get_port.sync_detailed("vm9", client=client)),
}
print(json.dumps(found))
