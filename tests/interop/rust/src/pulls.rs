//! What the crate's consumer lacks, by requests that the crate makes: pulls with a tag in the request,
//! and messages sent back.

use crate::consume::Seen;
use rocketmq_client_v4::connection::MqConnection;
use rocketmq_client_v4::protocols::body::message_body::MessageBody;
use rocketmq_client_v4::protocols::header::pull_message_request_header::PullMessageRequestHeader;
use rocketmq_client_v4::protocols::header::pull_message_response_header::PullMessageResponseHeader;
use rocketmq_client_v4::protocols::mq_command::MqCommand;
use rocketmq_client_v4::protocols::{request_code, response_code, SerializeDeserialize};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

const SUSPEND_AND_SUBSCRIPTION: i32 = 2 | 4;

async fn broker(name_server: &str) -> TcpStream {
    let cluster = MqConnection::get_cluster_info(name_server).await;
    MqConnection::get_one_master_broker_stream(&cluster).await
}

/// Reads the messages of a topic that have the tag.
#[derive(Clone)]
pub struct Cursor {
    pub name_server: String,
    pub group: String,
    pub topic: String,
    pub tag: String,
}

impl Cursor {
    /// Follows each queue from its beginning, on a connection of its own.
    pub async fn follow_all(self, queues: i32, seen: Arc<Seen>) {
        for queue in 0..queues {
            tokio::spawn(self.clone().follow(queue, seen.clone()));
        }
    }

    async fn follow(self, queue: i32, seen: Arc<Seen>) {
        let mut stream = broker(&self.name_server).await;
        let mut offset = 0;
        loop {
            let answer = self.pull(&mut stream, queue, offset).await;
            if answer.req_code == response_code::TOPIC_NOT_EXIST {
                tokio::time::sleep(Duration::from_millis(100)).await; // a heartbeat will make it
                continue;
            }
            let found = answer.req_code == response_code::SUCCESS;
            let header = PullMessageResponseHeader::bytes_to_header(
                answer.header_serialize_method,
                answer.e_body,
            );
            offset = header.and_then(|header| header.nextBeginOffset).expect("the next offset");
            if found {
                MessageBody::decode_from_bytes(answer.body).iter().for_each(|one| seen.add(one));
            }
        }
    }

    async fn pull(&self, stream: &mut TcpStream, queue: i32, offset: i64) -> MqCommand {
        let (group, topic) = (self.group.clone(), self.topic.clone());
        let mut header = PullMessageRequestHeader::new(group, topic, queue, offset, 0);
        header.sysFlag = SUSPEND_AND_SUBSCRIPTION;
        header.subscription = Some(self.tag.clone());
        let answer = header.send_request(stream).await.expect("an answer");
        let taken = [
            response_code::SUCCESS,
            response_code::PULL_NOT_FOUND,
            response_code::PULL_RETRY_IMMEDIATELY,
            response_code::TOPIC_NOT_EXIST,
        ];
        assert!(
            taken.contains(&answer.req_code),
            "pull of {} {queue} at {offset}: {} {}",
            self.topic,
            answer.req_code,
            String::from_utf8_lossy(&answer.r_body)
        );
        answer
    }
}

#[derive(Serialize)]
#[allow(non_snake_case)]
struct SendBackHeader {
    offset: i64,
    group: String,
    delayLevel: i32,
    originMsgId: String,
    originTopic: String,
    unitMode: bool,
    maxReconsumeTimes: i32,
}

impl SerializeDeserialize for SendBackHeader {}

/// Gives messages back to the broker, for another delivery from the group's retry topic.
pub struct SendBack {
    group: String,
    stream: Mutex<TcpStream>,
}

impl SendBack {
    pub async fn connect(name_server: &str, group: &str) -> SendBack {
        let stream = Mutex::new(broker(name_server).await);
        SendBack { group: group.to_string(), stream }
    }

    pub async fn refuse(&self, message: &MessageBody) {
        let header = SendBackHeader {
            offset: message.commit_log_offset,
            group: self.group.clone(),
            delayLevel: 0,
            originMsgId: message.msg_id.clone(),
            originTopic: message.topic.clone(),
            unitMode: false,
            maxReconsumeTimes: 16,
        };
        let code = request_code::CONSUMER_SEND_MSG_BACK;
        let command = MqCommand::new_with_body(code, vec![], header.to_bytes_1(), vec![]);
        let mut stream = self.stream.lock().await;
        stream.write_all(&command.to_bytes()).await.expect("a broker that reads");
        let answer = MqCommand::read_from_stream_with_opaque(&mut stream, command.opaque).await;
        let remark = String::from_utf8_lossy(&answer.r_body).to_string();
        assert_eq!(answer.req_code, response_code::SUCCESS, "sent back {}: {remark}", message.msg_id);
    }
}
