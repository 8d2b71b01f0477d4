import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * {@code consume} with the lite pull consumer, which 4.4.0 does not have. The one of 5.x pulls with a
 * request code of its own (361), which a Java 4.9 broker refuses and ours must serve.
 */
public final class Lite {
    private Lite() {
    }

    public static void main(String[] args) throws Exception {
        Options options = new Options(args);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group", "lite"));
        consumer.setNamesrvAddr(options.text("namesrv", ""));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic", ""), options.text("tag", "*"));
        consumer.start();
        Lines.line().put("ready", 1).print();
        Set<String> seen = new HashSet<>();
        long deadline = System.currentTimeMillis() + options.number("timeout", 60) * 1000L;
        while (seen.size() < options.number("count", 0) && System.currentTimeMillis() < deadline) {
            List<MessageExt> messages = consumer.poll(500);
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                Lines.line().put("queue", message.getQueueId()).put("offset", message.getQueueOffset())
                    .put("body", body).put("keys", message.getKeys()).put("id", message.getMsgId())
                    .put("reconsume", message.getReconsumeTimes()).print();
                seen.add(body);
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        System.exit(0);
    }
}
