import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A pull consumer; each word is for one queue, --topic and --queue.
 *
 * <pre>
 * queues               how many queues the topic has to read from
 * pull                 --offset, --max, --tag or --sql; with --hold yes it waits for a message
 * offsets              the least and the next one; with --time MS the one of that time
 * commit, committed    --offset: the group's offset
 * back                 --offset, --level: the message there is sent back, to come again
 * </pre>
 */
final class Pulling implements Features.Client {
    private final DefaultMQPullConsumer consumer;

    Pulling(String name, Options options) throws Exception {
        consumer = new DefaultMQPullConsumer(options.text("group", name), options.signing());
        consumer.setNamesrvAddr(options.text("namesrv", ""));
        consumer.setInstanceName(options.text("instance", name));
        Features.hasten(consumer);
        consumer.start();
    }

    @Override
    public void act(String word, Options options, Lines answer) throws Exception {
        Set<MessageQueue> queues = new TreeSet<>(
            Features.insist(() -> consumer.fetchSubscribeMessageQueues(options.text("topic", ""))));
        MessageQueue queue = queues.stream()
            .filter(one -> one.getQueueId() == options.number("queue", 0)).findFirst().get();
        switch (word) {
            case "queues":
                answer.put("count", queues.size());
                break;
            case "pull":
                pulled(pull(queue, options), answer);
                break;
            case "offsets":
                answer.put("min", consumer.minOffset(queue)).put("max", consumer.maxOffset(queue))
                    .put("at", consumer.searchOffset(queue, Long.parseLong(options.text("time", "0"))));
                break;
            case "commit":
                consumer.updateConsumeOffset(queue, options.number("offset", 0));
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore()
                    .persistAll(Collections.singleton(queue));
                break;
            case "committed":
                answer.put("offset", consumer.fetchConsumeOffset(queue, true));
                break;
            case "back":
                MessageExt message = pull(queue, options).getMsgFoundList().get(0);
                consumer.sendMessageBack(message, options.number("level", 0));
                break;
            default:
                throw new IllegalArgumentException(word);
        }
    }

    private PullResult pull(MessageQueue queue, Options options) throws Exception {
        int offset = options.number("offset", 0);
        int most = options.number("max", 32);
        String tag = options.text("tag", "*");
        String sql = options.text("sql", "");
        if (!sql.isEmpty()) {
            return consumer.pull(queue, MessageSelector.bySql(sql), offset, most);
        }
        return options.yes("hold") ? consumer.pullBlockIfNotFound(queue, tag, offset, most)
            : consumer.pull(queue, tag, offset, most);
    }

    private static void pulled(PullResult result, Lines answer) {
        List<MessageExt> found = result.getMsgFoundList();
        answer.put("status", result.getPullStatus().name()).put("next", result.getNextBeginOffset())
            .put("min", result.getMinOffset()).put("max", result.getMaxOffset())
            .raw("found", Given.list(found == null ? Collections.emptyList() : found));
    }

    @Override
    public void close() {
        consumer.shutdown();
    }
}
