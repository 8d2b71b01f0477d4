import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A lite pull consumer of --topic, from its first message on: --tag or --sql, or --queue, which it
 * is then assigned to.
 *
 * <pre>
 * subscribe            with another --tag, while it runs
 * poll                 --count: as many messages
 * seek                 --offset, of the queue that it is assigned to
 * commit               what was polled; the answer is the queue's committed offset then
 * </pre>
 */
final class Polling implements Features.Client {
    private final DefaultLitePullConsumer consumer;
    private final String topic;
    private final List<MessageQueue> assigned = new ArrayList<>();

    Polling(String name, Options options) throws Exception {
        topic = options.text("topic", "");
        consumer = new DefaultLitePullConsumer(options.text("group", name));
        consumer.setNamesrvAddr(options.text("namesrv", ""));
        consumer.setInstanceName(options.text("instance", name));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        Features.hasten(consumer);
        String sql = options.text("sql", "");
        int queue = options.number("queue", -1);
        if (!sql.isEmpty()) {
            consumer.subscribe(topic, MessageSelector.bySql(sql));
        } else if (queue < 0) {
            consumer.subscribe(topic, options.text("tag", "*"));
        }
        consumer.start();
        if (queue >= 0) {
            for (MessageQueue one : consumer.fetchMessageQueues(topic)) {
                if (one.getQueueId() == queue) {
                    assigned.add(one);
                }
            }
            consumer.assign(assigned);
        }
    }

    @Override
    public void act(String word, Options options, Lines answer) throws Exception {
        switch (word) {
            case "subscribe":
                consumer.subscribe(topic, options.text("tag", "*"));
                break;
            case "poll":
                List<MessageExt> polled = new ArrayList<>();
                long deadline = System.currentTimeMillis() + 30_000;
                while (polled.size() < options.number("count", 1) && System.currentTimeMillis() < deadline) {
                    polled.addAll(consumer.poll(200));
                }
                answer.raw("found", Given.list(polled));
                break;
            case "seek":
                consumer.seek(assigned.get(0), options.number("offset", 0));
                break;
            case "commit":
                consumer.commitSync();
                if (!assigned.isEmpty()) {
                    answer.put("offset", consumer.committed(assigned.get(0)));
                }
                break;
            default:
                throw new IllegalArgumentException(word);
        }
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
