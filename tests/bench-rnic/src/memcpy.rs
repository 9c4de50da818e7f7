use std::hint::black_box;
use std::time::{Duration, Instant};

const WALK: usize = 64 << 20;
const PIECE: usize = 64 << 10;

/// Copies 64 KiB pieces from one 64 MiB buffer to another, walking both.
pub struct Memcpy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Memcpy {
    /// The two buffers, touched.
    pub fn new() -> Self {
        Memcpy { from: vec![0x5a; WALK], to: vec![0xa5; WALK] }
    }

    /// Speed of copying during `run`.
    pub fn bytes_per_sec(&mut self, run: Duration) -> f64 {
        let start = Instant::now();
        let mut bytes = 0;
        while start.elapsed() < run {
            for (to, from) in self.to.chunks_exact_mut(PIECE).zip(self.from.chunks_exact(PIECE)) {
                to.copy_from_slice(black_box(from));
            }
            black_box(&mut self.to);
            bytes += WALK;
        }
        bytes as f64 / start.elapsed().as_secs_f64()
    }
}
