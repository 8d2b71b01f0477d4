//! Sends `--count` messages to queues that the crate chooses.

use crate::options::Options;
use crate::say;
use rocketmq_client_v4::producer::Producer;
use rocketmq_client_v4::protocols::body::heartbeat_data::HeartbeatData;
use rocketmq_client_v4::protocols::mq_command::MqCommand;
use rocketmq_client_v4::protocols::{request_code, SerializeDeserialize};
use serde_json::json;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub async fn run(options: &Options, failed: &AtomicUsize) {
    let (group, topic) = (options.text("group", "peers"), options.text("topic", ""));
    let mut producer = Producer::new(group, options.text("namesrv", "")).await;
    let count = options.number("count", 0);
    for sequence in 0..count {
        let prefix = options.text("prefix", "m");
        let body = format!("{prefix}-{}-{sequence}", options.text("producer", "rust"));
        let properties = properties(options, &body);
        producer.send_with_properties(topic.clone(), properties, body.into_bytes()).await.unwrap();
        say(json!({"sent": sequence, "mode": "oneway"}));
        tokio::time::sleep(Duration::from_millis(options.number("interval-ms", 0) as u64)).await;
    }
    all_answered(&producer).await;
    say(json!({"done": count, "failed": failed.load(Ordering::SeqCst)}));
}

fn properties(options: &Options, body: &str) -> HashMap<String, String> {
    let mut properties = HashMap::from([("WAIT".to_string(), "true".to_string())]);
    if options.number("delay-level", 0) > 0 {
        properties.insert("DELAY".to_string(), options.text("delay-level", ""));
    }
    if !options.text("tag", "").is_empty() {
        properties.insert("TAGS".to_string(), options.text("tag", ""));
    }
    if options.yes("keys") {
        properties.insert("KEYS".to_string(), body.to_string());
    }
    properties
}

/// The crate sends one command of its channel, waits for the answer, and takes the next: when it has
/// taken one more heartbeat, all before that is answered.
async fn all_answered(producer: &Producer) {
    let data = HeartbeatData::new_producer_data(producer.client_id.clone(), producer.group_name.clone());
    let body = data.to_json_bytes();
    let heartbeat = MqCommand::new_with_body(request_code::HEART_BEAT, vec![], vec![], body);
    producer.tx.send(heartbeat).await.expect("the crate's task runs");
    while producer.tx.capacity() < producer.tx.max_capacity() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
