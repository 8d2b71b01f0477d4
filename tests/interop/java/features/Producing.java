import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A producer; with {@code --transactions yes} one of transactions, see Deciding.
 *
 * <pre>
 * send                 a message: --topic, --body, --keys, --tag, --queue, --level,
 *                      --properties a=1,b=x, --transaction yes, --time SETTER=MS (of 5.x)
 * request              the same, and its reply; --timeout MS, --callback yes
 * reply                --consumer NAME --to BODY --body: to a message which that consumer got
 * recall               --topic, --handle (of 5.x)
 * find                 --topic, --key: messages of the last hour, by key
 * queues               --topic: the queues that it would send to
 * </pre>
 */
final class Producing implements Features.Client {
    private static final int TIMEOUT_MS = 60_000; // two busy cores

    private final DefaultMQProducer producer;
    private volatile boolean reached;

    Producing(String name, Options options) throws Exception {
        String group = options.text("group", name);
        boolean trace = options.yes("trace");
        RPCHook hook = options.signing();
        if (options.yes("transactions")) {
            TransactionMQProducer deciding = new TransactionMQProducer(null, group, hook, trace, null);
            deciding.setTransactionListener(new Deciding(name));
            producer = deciding;
        } else {
            producer = new DefaultMQProducer(null, group, hook, trace, null);
        }
        producer.setNamesrvAddr(options.text("namesrv", ""));
        producer.setInstanceName(options.text("instance", name));
        Features.hasten(producer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setUnitMode(options.yes("unit"));
        if (!options.text("namespace", "").isEmpty()) {
            producer.setNamespace(options.text("namespace", ""));
        }
        producer.start();
    }

    @Override
    public void act(String word, Options options, Lines answer) throws Exception {
        switch (word) {
            case "send":
                reach(options);
                sent(send(message(options), options), answer);
                break;
            case "request":
                reach(options);
                request(message(options), options, answer);
                break;
            case "reply":
                MessageExt asked = ((Pushing) Features.client(options.text("consumer", "")))
                    .received(options.text("to", ""));
                byte[] body = options.text("body", "").getBytes(StandardCharsets.UTF_8);
                sent(producer.send(MessageUtil.createReplyMessage(asked, body)), answer);
                break;
            case "recall":
                answer.put("id", (String) DefaultMQProducer.class
                    .getMethod("recallMessage", String.class, String.class)
                    .invoke(producer, options.text("topic", ""), options.text("handle", "")));
                break;
            case "find":
                long now = System.currentTimeMillis();
                answer.raw("found", Given.list(producer.queryMessage(options.text("topic", ""),
                    options.text("key", ""), 64, now - 3_600_000, now + 3_600_000).getMessageList()));
                break;
            case "queues":
                List<MessageQueue> queues = queues(options);
                Collections.sort(queues);
                answer.put("count", queues.size()).put("queues", queues.toString());
                break;
            default:
                throw new IllegalArgumentException(word);
        }
    }

    @Override
    public void close() {
        producer.shutdown();
    }

    private List<MessageQueue> queues(Options options) throws Exception {
        return Features.insist(() -> producer.fetchPublishMessageQueues(options.text("topic", "")));
    }

    /** A send asks for its topic's route once. */
    private void reach(Options options) throws Exception {
        if (!reached) {
            try {
                queues(options);
            } catch (MQClientException none) {
                // No such topic yet: the name server has said so, and that is all that is asked here.
            }
            reached = true;
        }
    }

    private SendResult send(Message message, Options options) throws Exception {
        if (options.yes("transaction")) {
            return producer.sendMessageInTransaction(message, null);
        }
        int queue = options.number("queue", -1);
        if (queue < 0) {
            return producer.send(message);
        }
        return producer.send(message, (queues, sent, index) -> queues.get((Integer) index), queue);
    }

    private void request(Message message, Options options, Lines answer) throws Exception {
        int timeoutMs = options.number("timeout", TIMEOUT_MS);
        if (!options.yes("callback")) {
            replied(producer.request(message, timeoutMs), answer);
            return;
        }
        CountDownLatch called = new CountDownLatch(1);
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                replied(reply, answer);
                called.countDown();
            }

            @Override
            public void onException(Throwable failure) {
                Features.failed(answer, failure);
                called.countDown();
            }
        }, timeoutMs);
        called.await();
    }

    private static void replied(Message reply, Lines answer) {
        answer.raw("reply", Given.message((MessageExt) reply));
    }

    private static void sent(SendResult result, Lines answer) throws Exception {
        answer.put("status", result.getSendStatus().name()).put("id", result.getMsgId())
            .put("offsetId", result.getOffsetMsgId()).put("offset", result.getQueueOffset());
        if (result.getMessageQueue() != null) {
            answer.put("topic", result.getMessageQueue().getTopic())
                .put("queue", result.getMessageQueue().getQueueId());
        }
        if (result instanceof TransactionSendResult) {
            answer.put("transaction", result.getTransactionId()).put("state",
                ((TransactionSendResult) result).getLocalTransactionState().name());
        }
        try {
            answer.put("handle", (String) SendResult.class.getMethod("getRecallHandle").invoke(result));
        } catch (NoSuchMethodException older) {
            return; // 4.x knows no recalls
        }
    }

    private static Message message(Options options) throws Exception {
        Message message = new Message(options.text("topic", ""), options.text("tag", null),
            options.text("keys", null), options.text("body", "").getBytes(StandardCharsets.UTF_8));
        for (String entry : options.text("properties", "").split(",")) {
            if (!entry.isEmpty()) {
                message.putUserProperty(entry.split("=")[0], entry.split("=")[1]);
            }
        }
        if (options.number("level", 0) > 0) {
            message.setDelayTimeLevel(options.number("level", 0));
        }
        String[] time = options.text("time", "").split("=");
        if (time.length == 2) {
            Message.class.getMethod(time[0], long.class).invoke(message, Long.parseLong(time[1]));
        }
        return message;
    }
}
