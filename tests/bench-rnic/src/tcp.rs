use std::io;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use guest_sim::Cluster;

/// iperf3 between the two hosts: its server on host 2.
pub struct Tcp<'c> {
    cluster: &'c Cluster,
    server: Child,
}

impl<'c> Tcp<'c> {
    /// Starts the server.
    pub fn start(cluster: &'c Cluster) -> io::Result<Self> {
        let mut command = cluster.command(2, Path::new("iperf3"));
        let server = command.args(["-s"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Tcp { cluster, server })
    }

    /// Speed of one TCP connection during about `run`.
    pub fn bytes_per_sec(&self, run: Duration) -> io::Result<f64> {
        // iperf3 knows whole seconds only, and 0 means without end.
        let seconds = run.as_secs_f64().ceil().max(1.0).to_string();
        let server = Cluster::underlay(2).to_string();
        for attempt in 0.. {
            let mut command = self.cluster.command(1, Path::new("iperf3"));
            let out = command.args(["-c", &server, "-J", "-t", &seconds]).output()?;
            let report: serde_json::Value = serde_json::from_slice(&out.stdout)?;
            if let Some(bits) = report["end"]["sum_received"]["bits_per_second"].as_f64() {
                return Ok(bits / 8.0);
            }
            // The server needs a moment to start, and between two clients.
            if attempt == 50 {
                return Err(io::Error::other(format!("iperf3: {}", report["error"])));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        unreachable!("the loop returns")
    }
}

impl Drop for Tcp<'_> {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
