"""A whole lab of its own (plain VMs, no masqd): up, use, down, and nothing left. Needs root and set-up."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

LAB = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "lab"
NAME = "smoke"
ENV = {**os.environ, "MASQ_LAB": NAME}


def lab(*args, **kwargs):
    return subprocess.run([str(LAB), *args], env=ENV, capture_output=True, text=True, timeout=400, **kwargs)


def leftovers():
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    found = [line for line in spaces.splitlines() if line.startswith(f"masq-{NAME}")]
    found += [p for p in (f"/run/masq-{NAME}",) if os.path.exists(p)]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if f"/run/masq-{NAME}/".encode() in words:
            found.append(words.replace(b"\0", b" ").decode(errors="replace")[:100])
    return found


class Smoke(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        lab("down")
        begin = time.monotonic()
        done = lab("up", "--without-masqd", "--vms", "3")
        cls.boot_seconds = time.monotonic() - begin
        assert done.returncode == 0, done.stderr

    @classmethod
    def tearDownClass(cls):
        done = lab("down")
        assert done.returncode == 0, done.stderr
        assert not leftovers(), leftovers()
        assert lab("down").returncode == 0, "down is not idempotent"

    def test_status_lists_the_vms(self):
        vms = json.loads(lab("status", "-o", "json").stdout)["vms"]
        self.assertEqual([(v["name"], v["host"], v["address"]) for v in vms],
                         [("blue-1", "h1", "192.168.0.1"), ("blue-2", "h1", "192.168.0.2"), ("blue-3", "h2", "192.168.0.3")])
        self.assertTrue(all(v["state"] == "running" for v in vms))

    def test_exec_passes_words_status_and_input(self):
        done = lab("exec", "blue-1", "--", "sh", "-c", 'printf "%s|" "$@"; cat; exit 7', "x", "it's", 'a "b" $c  d', input="in\n")
        self.assertEqual((done.stdout, done.returncode), ("it's|a \"b\" $c  d|in\n", 7))
        self.assertEqual(lab("exec", "blue-1", "--", "sh", "-c", "kill -9 $$").returncode, 137)
        self.assertIn("no VM", lab("exec", "nobody", "--", "true").stderr)

    def test_exec_streams_what_comes(self):
        with subprocess.Popen([str(LAB), "exec", "blue-1", "--", "sh", "-c", "echo first; sleep 5"], env=ENV,
                              stdout=subprocess.PIPE, text=True) as process:
            begin = time.monotonic()
            self.assertEqual(process.stdout.readline(), "first\n")
            self.assertLess(time.monotonic() - begin, 4)

    def test_many_at_once(self):
        running = [subprocess.Popen([str(LAB), "exec", "blue-2", "--", "sh", "-c", f"sleep 1; exit {i}"], env=ENV)
                   for i in range(12)]
        self.assertEqual([p.wait() for p in running], list(range(12)))

    def test_an_ended_exec_leaves_nothing_in_the_vm(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with self.subTest(number):
                process = subprocess.Popen([str(LAB), "exec", "blue-2", "--", "sh", "-c", "sleep 4711 & sleep 4711"],
                                           env=ENV, stdout=subprocess.PIPE)
                time.sleep(2)
                process.send_signal(number)
                # The pipe closes at once: nothing that holds it outlives the command.
                process.communicate(timeout=15)
                self.assertEqual(process.returncode, -9 if number == signal.SIGKILL else 128 + number)
                time.sleep(2)
                self.assertEqual(lab("exec", "blue-2", "--", "pgrep", "-fx", "sleep 4711").stdout, "")

    def test_exec_under_timeout_says_nothing(self):
        done = subprocess.run(["timeout", "3", str(LAB), "exec", "blue-2", "--", "sleep", "50"], env=ENV,
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (124, ""))

    def test_cp_goes_both_ways(self):
        with tempfile.TemporaryDirectory() as folder:
            there, back = pathlib.Path(folder) / "a b", pathlib.Path(folder) / "back"
            there.write_bytes(os.urandom(300_000))
            self.assertEqual(lab("cp", str(there), "blue-1:/root/a b").returncode, 0)
            self.assertEqual(lab("cp", "blue-1:/root/a b", str(back)).returncode, 0)
            self.assertEqual(there.read_bytes(), back.read_bytes())

    def test_tenants_talk_over_jumbo_frames_on_one_host_and_on_two(self):
        for peer in ("192.168.0.2", "192.168.0.3"):
            done = lab("exec", "blue-1", "--", "ping", "-c", "2", "-W", "5", "-M", "do", "-s", "8972", peer)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_kernel_rxe_works(self):
        done = lab("exec", "blue-3", "--", "sh", "-c", "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0 && ibv_devices")
        self.assertIn("rxe0", done.stdout, done.stderr)

    def test_a_killed_vm_starts_again(self):
        self.assertEqual(lab("kill", "blue-3").returncode, 0)
        self.assertIn("not running", lab("exec", "blue-3", "--", "true").stderr)
        done = lab("start", "blue-3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(lab("exec", "blue-3", "--", "hostname").stdout, "blue-3\n")

    def test_up_refuses_a_second_time(self):
        self.assertIn("already", lab("up", "--without-masqd").stderr)

    def test_logs_show_the_console(self):
        self.assertIn("masq-lab: blue-1 ready", lab("logs", "blue-1").stdout)


class HalfFailed(unittest.TestCase):
    def test_down_clears_what_a_killed_up_left(self):
        env = {**ENV, "MASQ_LAB": f"{NAME}-half"}
        up = subprocess.Popen([str(LAB), "up", "--without-masqd", "--vms", "2"], env=env, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not os.path.exists(f"/run/masq-{NAME}-half/logs/blue-2.console.log") and time.monotonic() < deadline:
            time.sleep(0.1)
        up.kill()
        up.wait()
        self.assertEqual(subprocess.run([str(LAB), "down"], env=env, capture_output=True).returncode, 0)
        self.assertEqual([f for f in leftovers() if "half" in f], [])


if __name__ == "__main__":
    unittest.main()
