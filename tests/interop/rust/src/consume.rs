//! Consumes until `--count` different bodies were seen (0: until it is told to stop).

use crate::options::Options;
use crate::{pulls, say};
use rocketmq_client_v4::consumer::message_handler::MessageHandler;
use rocketmq_client_v4::consumer::pull_consumer_v2::PullConsumer;
use rocketmq_client_v4::protocols::body::message_body::MessageBody;
use serde_json::json;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::{Notify, RwLock};

/// What was consumed so far, and whether that is all.
pub struct Seen {
    bodies: Mutex<HashSet<Vec<u8>>>,
    count: usize,
    enough: Notify,
}

impl Seen {
    pub fn add(&self, message: &MessageBody) {
        say(json!({
            "queue": message.queue_id, "offset": message.queue_offset, "id": message.msg_id,
            "body": String::from_utf8_lossy(&message.body), "reconsume": message.reconsume_times,
        }));
        let mut bodies = self.bodies.lock().unwrap();
        bodies.insert(message.body.clone());
        if self.count > 0 && bodies.len() >= self.count {
            self.enough.notify_one();
        }
    }
}

struct Handler {
    seen: Arc<Seen>,
    back: Option<pulls::SendBack>,
}

impl MessageHandler for Handler {
    async fn handle(&self, message: &MessageBody) {
        match &self.back {
            Some(back) => back.refuse(message).await,
            None => self.seen.add(message),
        }
    }
}

pub async fn run(options: Options) {
    let (bodies, enough) = (Mutex::default(), Notify::new());
    let seen = Arc::new(Seen { bodies, count: options.number("count", 0), enough });
    let running = Arc::new(RwLock::new(true));
    start(&options, seen.clone(), running.clone()).await;
    say(json!({"ready": 1}));
    let mut told = signal(SignalKind::terminate()).expect("a handler of SIGTERM");
    tokio::select! {
        _ = seen.enough.notified() => {}
        _ = told.recv() => {}
        _ = tokio::time::sleep(Duration::from_secs(options.number("timeout", 60) as u64)) => {}
    }
    tokio::time::sleep(Duration::from_millis(300)).await; // the last offset is among those stored
    *running.write().await = false;
}

async fn start(options: &Options, seen: Arc<Seen>, running: Arc<RwLock<bool>>) {
    let (name_server, topic) = (options.text("namesrv", ""), options.text("topic", ""));
    let group = options.text("group", "peers");
    let tag = options.text("tag", "*");
    if tag != "*" {
        let cursor = pulls::Cursor { name_server, group, topic, tag };
        return cursor.follow_all(options.number("queues", 8) as i32, seen).await;
    }
    let back = if options.yes("reject-first") {
        let retries = pulls::Cursor {
            name_server: name_server.clone(),
            group: group.clone(),
            topic: format!("%RETRY%{group}"),
            tag,
        };
        retries.follow_all(1, seen.clone()).await;
        Some(pulls::SendBack::connect(&name_server, &group).await)
    } else {
        None
    };
    let consumer = if options.yes("broadcast") {
        PullConsumer::new_broadcast_consumer(name_server, group, topic)
    } else {
        PullConsumer::new(name_server, group, topic)
    };
    consumer.start_consume(Arc::new(Handler { seen, back }), running).await;
}
