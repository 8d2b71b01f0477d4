//! The Rust peer of the interop tests, over the crate rocketmq-client-v4. Its command line and its
//! output are those of every other peer: see tests/interop/README.md.
//!
//! The crate's producer says nothing of an answer but in its log, so every send is "oneway" here, and
//! failed when the crate warns of it. Its consumer has neither tags nor second deliveries: `pulls.rs`
//! has them, with requests that the crate makes.

mod consume;
mod options;
mod produce;
mod pulls;

use log::{LevelFilter, Log, Metadata, Record};
use options::Options;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often the crate's producer has warned: its sends that failed.
static FAILED_SENDS: AtomicUsize = AtomicUsize::new(0);

struct Warnings;

impl Log for Warnings {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        eprintln!("{} {}", record.target(), record.args());
        if record.target() == "rocketmq_client_v4::producer" {
            FAILED_SENDS.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

/// Prints one JSON object as a line; standard output is flushed at each.
pub fn say(fields: serde_json::Value) {
    println!("{fields}");
}

#[tokio::main]
async fn main() {
    log::set_logger(&Warnings).expect("no other logger");
    log::set_max_level(LevelFilter::Warn);
    let options = Options::parse(std::env::args().skip(2));
    match std::env::args().nth(1).as_deref() {
        Some("produce") => produce::run(&options, &FAILED_SENDS).await,
        Some("consume") => consume::run(options).await,
        other => panic!("produce or consume, not {other:?}"),
    }
    std::process::exit(0); // the crate's tasks have no end of their own
}
