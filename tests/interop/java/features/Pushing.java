import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A push consumer of --topic, from its first message on: --group, --tag or --sql, --orderly yes,
 * --model BROADCASTING, --reject-first yes (a message is refused until it comes again), --trace,
 * --namespace, --unit. Each message is an event.
 *
 * <pre>
 * subscribe            to --topic with another --tag, while it runs
 * </pre>
 */
final class Pushing implements Features.Client {
    private final String name;
    private final boolean rejectFirst;
    private final DefaultMQPushConsumer consumer;
    private final Map<String, MessageExt> received = new ConcurrentHashMap<>();

    Pushing(String name, Options options) throws Exception {
        this.name = name;
        this.rejectFirst = options.yes("reject-first");
        consumer = new DefaultMQPushConsumer(null, options.text("group", name),
            options.signing(), new AllocateMessageQueueAveragely(), options.yes("trace"), null);
        consumer.setNamesrvAddr(options.text("namesrv", ""));
        consumer.setInstanceName(options.text("instance", name));
        Features.hasten(consumer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        // So that the offsets of what was taken are among those it leaves with.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.setUnitMode(options.yes("unit"));
        if (!options.text("namespace", "").isEmpty()) {
            consumer.setNamespace(options.text("namespace", ""));
        }
        // The type of the model has another package in 5.x.
        consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(),
            options.text("model", "CLUSTERING")));
        String sql = options.text("sql", "");
        if (sql.isEmpty()) {
            consumer.subscribe(options.text("topic", ""), options.text("tag", "*"));
        } else {
            consumer.subscribe(options.text("topic", ""), MessageSelector.bySql(sql));
        }
        if (options.yes("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                taken(messages) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                taken(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        try {
            consumer.start();
        } catch (Exception refused) {
            consumer.shutdown();
            throw refused;
        }
    }

    private boolean taken(List<MessageExt> messages) {
        boolean refused = rejectFirst && messages.get(0).getReconsumeTimes() == 0;
        for (MessageExt message : messages) {
            received.put(Given.body(message), message);
            Features.event(refused ? "refused" : "message", name)
                .raw("message", Given.message(message)).print();
        }
        return !refused;
    }

    MessageExt received(String body) {
        return received.get(body);
    }

    @Override
    public void act(String word, Options options, Lines answer) throws Exception {
        if (!word.equals("subscribe")) {
            throw new IllegalArgumentException(word);
        }
        consumer.subscribe(options.text("topic", ""), options.text("tag", "*"));
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
