use std::sync::Arc;
use std::time::Duration;

use crate::transport::{Congestion, QpConfig};
use crate::udp::{FaultInjection, Network, UdpSockets};

/// How an RNIC runs.
#[derive(Clone, Debug)]
pub struct RnicConfig {
    /// Randomness for the keys of memory regions: must be unpredictable, and differ in every life of an RNIC.
    pub seed: [u8; 32],
    /// How many engines there are, each with a thread: 1 to 64.
    pub engines: u16,
    /// Longest time that the engine keeps looking for work before it sleeps. It looks for less where that has not paid.
    pub max_spin: Duration,
    /// What its local addresses are bound on.
    pub network: Arc<dyn Network>,
    /// What received packets suffer on purpose, in tests.
    pub faults: Option<FaultInjection>,
    /// Limits of the RC transport.
    pub transport: QpConfig,
}

impl Default for RnicConfig {
    /// A seed of zeroes, no faults, and Swift, so that what is tested with the default is tested with control. Only tests may leave the seed as it is.
    fn default() -> Self {
        Self {
            seed: [0; 32],
            engines: 1,
            max_spin: Duration::from_micros(60),
            network: Arc::new(UdpSockets::default()),
            faults: None,
            // 4 MiB at the largest MTU: enough to go on while the peer's engine waits for its turn on a busy host.
            // A receiving socket holds the windows of about sixteen connections.
            transport: QpConfig {
                window_packets: 1024,
                congestion: Congestion::Swift,
                ..QpConfig::default()
            },
        }
    }
}
