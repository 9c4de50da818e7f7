"""Writes "newc" cpio archives, the format of initramfs parts."""

import stat


class Cpio:
    def __init__(self):
        self._parts = []
        self._seen = set()

    def add_dir(self, name, mode=0o755):
        name = name.strip("/")
        if not name or name in self._seen:
            return
        if "/" in name:
            self.add_dir(name.rsplit("/", 1)[0])
        self._seen.add(name)
        self._entry(name, stat.S_IFDIR | mode, b"")

    def add_file(self, name, data, mode=0o644):
        self._parent(name)
        self._entry(name.strip("/"), stat.S_IFREG | mode, data)

    def add_link(self, name, target):
        self._parent(name)
        self._entry(name.strip("/"), stat.S_IFLNK | 0o777, target.encode())

    def bytes(self):
        self._entry("TRAILER!!!", 0, b"")
        whole = b"".join(self._parts)
        # Archives can be joined end to end when each fills whole blocks.
        return whole + bytes(-len(whole) % 512)

    def _parent(self, name):
        if "/" in name.strip("/"):
            self.add_dir(name.strip("/").rsplit("/", 1)[0])

    def _entry(self, name, mode, data):
        raw = name.encode() + b"\0"
        fields = (len(self._parts) + 1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % f for f in fields)
        self._parts.append(head + raw + bytes(-(len(head) + len(raw)) % 4) + data + bytes(-len(data) % 4))
