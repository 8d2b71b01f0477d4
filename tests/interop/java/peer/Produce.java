import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.Semaphore;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends {@code --count} messages, divided over {@code --modes}; message n goes to queue n mod queues.
 *  With {@code --follow yes} the client chooses the queues of sync sends, by the routes that it reads. */
final class Produce {
    private static final int TIMEOUT_MS = 3000;
    private static final int FIRST_ROUTE_MS = 120_000;
    private static final int BATCH = 32;
    private static final int ASYNC_WINDOW = 128;

    private final Options options;
    private final String topic;
    private final DefaultMQProducer producer;
    private final long giveUpMs;
    private List<MessageQueue> queues;
    private int failed;

    Produce(Options options) {
        this.options = options;
        this.topic = options.text("topic", "");
        this.giveUpMs = options.number("retry-seconds", 0) * 1000L;
        this.producer = new DefaultMQProducer(options.text("group", "producers"), options.signing());
        producer.setNamesrvAddr(options.text("namesrv", ""));
        producer.setInstanceName("peer-" + ProcessHandle.current().pid());
        producer.setPollNameServerInterval(options.number("poll-ms", 30_000));
        producer.setRetryTimesWhenSendFailed(options.number("retries", 2));
    }

    void run() throws Exception {
        Options.bePatientOverTls(producer);
        producer.start();
        queues = firstRoute();
        queues.sort(Comparator.naturalOrder());
        String[] modes = options.text("modes", "sync").split(",");
        int count = options.number("count", 1);
        for (int i = 0; i < modes.length; i++) {
            send(modes[i], count * i / modes.length, count * (i + 1) / modes.length);
        }
        Lines.line().put("done", count).put("failed", failed).print();
        producer.shutdown();
    }

    /** The topic's queues. A client gives a name server three seconds, and asks once. */
    private List<MessageQueue> firstRoute() throws Exception {
        long until = System.currentTimeMillis() + FIRST_ROUTE_MS;
        while (true) {
            try {
                return producer.fetchPublishMessageQueues(topic);
            } catch (MQClientException failure) {
                if (System.currentTimeMillis() > until) {
                    throw failure;
                }
            }
        }
    }

    private void send(String mode, int from, int to) throws Exception {
        switch (mode) {
            case "sync":
                sync(from, to);
                break;
            case "async":
                async(from, to);
                break;
            case "oneway":
                oneway(from, to);
                break;
            case "batch":
                batch(from, to);
                break;
            default:
                throw new IllegalArgumentException("mode " + mode);
        }
    }

    private void sync(int from, int to) throws InterruptedException {
        for (int i = from; i < to; i++) {
            Message message = message(i);
            MessageQueue queue = queue(i);
            int sequence = i;
            insist(i, () -> acknowledged("sync", sequence, 1, options.yes("follow")
                ? producer.send(message, TIMEOUT_MS) : producer.send(message, queue, TIMEOUT_MS)));
            Thread.sleep(options.number("interval-ms", 0));
        }
    }

    private void async(int from, int to) throws Exception {
        Semaphore window = new Semaphore(ASYNC_WINDOW);
        for (int i = from; i < to; i++) {
            int sequence = i;
            window.acquire();
            producer.send(message(i), queue(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    try {
                        acknowledged("async", sequence, 1, result);
                    } catch (SendFailed failure) {
                        fail(sequence, failure);
                    }
                    window.release();
                }

                @Override
                public void onException(Throwable cause) {
                    fail(sequence, cause);
                    window.release();
                }
            }, TIMEOUT_MS);
        }
        window.acquire(ASYNC_WINDOW);
    }

    private void oneway(int from, int to) throws InterruptedException {
        for (int i = from; i < to; i++) {
            Message message = message(i);
            MessageQueue queue = queue(i);
            int sequence = i;
            insist(i, () -> {
                producer.sendOneway(message, queue);
                Lines.line().put("sent", sequence).put("mode", "oneway").print();
            });
        }
    }

    private void batch(int from, int to) throws InterruptedException {
        for (int i = from; i < to; i += BATCH) {
            List<Message> messages = new ArrayList<>();
            for (int k = i; k < Math.min(i + BATCH, to); k++) {
                messages.add(message(k));
            }
            MessageQueue queue = queue(i / BATCH);
            int first = i;
            insist(i, () -> acknowledged("batch", first, messages.size(),
                producer.send(messages, queue, TIMEOUT_MS)));
        }
    }

    /** Tries until it succeeds or --retry-seconds have passed: a killed broker comes back. */
    private void insist(int sequence, Attempt attempt) throws InterruptedException {
        long deadline = System.currentTimeMillis() + giveUpMs;
        while (true) {
            try {
                attempt.run();
                return;
            } catch (Exception failure) {
                fail(sequence, failure);
                if (System.currentTimeMillis() >= deadline) {
                    return;
                }
                Thread.sleep(200);
            }
        }
    }

    private static void acknowledged(String mode, int first, int count, SendResult result)
        throws SendFailed {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new SendFailed(result.getSendStatus().name());
        }
        String[] ids = result.getMsgId().split(",");
        String[] offsetIds = result.getOffsetMsgId().split(",");
        for (int i = 0; i < count; i++) {
            Lines.line().put("ack", first + i).put("mode", mode).put("id", ids[i])
                .put("offsetId", offsetIds[i]).put("queue", result.getMessageQueue().getQueueId())
                .put("offset", result.getQueueOffset() + i).print();
        }
    }

    private synchronized void fail(int sequence, Throwable cause) {
        failed++;
        Lines.line().put("fail", sequence).put("error", String.valueOf(cause)).print();
    }

    private MessageQueue queue(int index) {
        return queues.get(index % queues.size());
    }

    private Message message(int sequence) {
        String body = options.text("prefix", "m") + "-" + options.text("producer", "java") + "-" + sequence;
        Message message = new Message(topic, options.text("tag", "TagA"), body.getBytes(StandardCharsets.UTF_8));
        if (options.yes("keys")) {
            message.setKeys(body);
        }
        if (options.number("delay-level", 0) > 0) {
            message.setDelayTimeLevel(options.number("delay-level", 0));
        }
        return message;
    }

    private interface Attempt {
        void run() throws Exception;
    }

    private static final class SendFailed extends Exception {
        SendFailed(String status) {
            super(status);
        }
    }
}
