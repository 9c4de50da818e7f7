use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs cases one after another, catches their panics, and counts.
pub struct Runner {
    passed: u32,
    failed: Vec<String>,
    only: Vec<String>,
    started: Instant,
}

impl Runner {
    /// A runner of the cases whose names contain one of `only`, or of all if there is none.
    pub fn new(only: Vec<String>) -> Self {
        panic::set_hook(Box::new(|info| {
            let thread = std::thread::current();
            let text = format!("thread '{}': {info}", thread.name().unwrap_or("without a name"));
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }));
        Runner { passed: 0, failed: Vec::new(), only, started: Instant::now() }
    }

    /// Whether a case of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| name.contains(o.as_str()))
    }

    /// Runs a case, if it is wanted. `context` tells what else a failure's report should hold. Returns
    /// whether it did not fail.
    pub fn case(&mut self, name: &str, context: impl FnOnce() -> String, body: impl FnOnce()) -> bool {
        if !self.wants(name) {
            return true;
        }
        print!("{name:<58} ");
        let _ = std::io::stdout().flush();
        let start = Instant::now();
        let result = panic::catch_unwind(AssertUnwindSafe(body));
        let ms = start.elapsed().as_millis();
        // A panic of a thread that nobody joined fails the case as well.
        let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
        if result.is_ok() && panics.is_empty() {
            self.passed += 1;
            println!("ok {ms:>6} ms");
            return true;
        }
        println!("FAILED after {ms} ms");
        for text in panics.iter().map(String::as_str).chain([context().as_str()]) {
            println!("{}", indent(text));
        }
        self.failed.push(name.to_owned());
        false
    }

    /// Prints the closing line; the exit code.
    pub fn finish(self) -> std::process::ExitCode {
        if !self.failed.is_empty() {
            println!("failed: {}", self.failed.join(", "));
        }
        println!("{} s", self.started.elapsed().as_secs());
        println!("{} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() && self.passed > 0 {
            std::process::ExitCode::SUCCESS
        } else {
            std::process::ExitCode::FAILURE
        }
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("    {l}\n")).collect()
}
