"""What masqd tells Prometheus of a VM's vNIC, asked over its Unix socket."""

import http.client
import re
import socket

EVENTS = re.compile(r'masqd_vnic_events_total\{vpc="[^"]*",vnic="([^"]*)",counter="([^"]*)"\} (\d+)')
LINE = re.compile(r'masqd_vnic_(\w+)\{vpc="[^"]*",vnic="([^"]*)"(?:,resource="([^"]*)")?\} (\S+)')


class OverUnix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def of_vnic(lab, vm):
    """{name of a metric: value}, and of a metric by resource {name: {resource: value}}."""
    found = {}
    for name, vnic, resource, value in LINE.findall(_text(lab, vm)):
        if vnic == vm.name and resource:
            found.setdefault(name, {})[resource] = float(value)
        elif vnic == vm.name:
            found[name] = float(value)
    return found


def events_of_vnic(lab, vm):
    """{counter: value} of what has happened on the queue pairs of a VM."""
    return {counter: int(value) for vnic, counter, value in EVENTS.findall(_text(lab, vm)) if vnic == vm.name}


def _text(lab, vm):
    connection = OverUnix(lab.sockets[vm.host])
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def sent(lab, vm):
    """Bytes that a VM has sent by its RNIC."""
    return of_vnic(lab, vm)["tx_bytes_total"]
