import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Push-consumes until {@code --count} different bodies were seen (0: until it is told to stop). */
final class Consume {
    private final Options options;
    private final int count;
    private final boolean rejectFirst;
    private final Set<String> seen = new HashSet<>();
    private final CountDownLatch enough = new CountDownLatch(1);

    Consume(Options options) {
        this.options = options;
        this.count = options.number("count", 0);
        this.rejectFirst = options.yes("reject-first");
    }

    void run() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            options.text("group", "consumers"), options.signing(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.text("namesrv", ""));
        consumer.setInstanceName("peer-" + ProcessHandle.current().pid());
        Options.bePatientOverTls(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic", ""), options.text("tag", "*"));
        if (options.text("mode", "concurrent").equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                received(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean refused = rejectFirst && messages.get(0).getReconsumeTimes() == 0;
                if (!refused) {
                    received(messages);
                }
                return refused ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(consumer::shutdown));
        Lines.line().put("ready", 1).print();
        enough.await(options.number("timeout", 60), TimeUnit.SECONDS);
        Thread.sleep(300); // the last listener returns, so that its offset is among those stored
    }

    private synchronized void received(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            Lines.line().put("queue", message.getQueueId()).put("offset", message.getQueueOffset())
                .put("body", body).put("keys", message.getKeys()).put("id", message.getMsgId())
                .put("reconsume", message.getReconsumeTimes()).print();
            seen.add(body);
        }
        if (count > 0 && seen.size() >= count) {
            enough.countDown();
        }
    }
}
