import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Answers questions read from standard input, one a line, with one line each; ends with its input.
 *
 * <pre>
 * key    TOPIC KEY BEGIN_MS END_MS     all messages of that key stored in that time
 * id     TOPIC ID                      one message by its offset message id
 * unique TOPIC ID                      one message by its unique id, which must not be taken for an
 *                                      offset message id: it would be read as some host's address
 * time   TOPIC BROKER QUEUE MS         the queue offset at that time
 * range  TOPIC BROKER QUEUE            min and max queue offset
 * </pre>
 */
final class Query {
    private final DefaultMQProducer admin = new DefaultMQProducer("query");

    Query(Options options) {
        admin.setNamesrvAddr(options.text("namesrv", ""));
        admin.setInstanceName("peer-" + ProcessHandle.current().pid());
    }

    void run() throws Exception {
        admin.start();
        Lines.line().put("ready", 1).print();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                answer(line.split(" "));
            } catch (Exception failure) {
                Lines.line().put("error", String.valueOf(failure)).print();
            }
        }
        admin.shutdown();
    }

    private void answer(String[] words) throws Exception {
        String topic = words[1];
        switch (words[0]) {
            case "key":
                found(admin.queryMessage(topic, words[2], 64, Long.parseLong(words[3]),
                    Long.parseLong(words[4])).getMessageList());
                break;
            case "id":
                found(Collections.singletonList(admin.viewMessage(topic, words[2])));
                break;
            case "unique":
                found(Collections.singletonList(
                    admin.getDefaultMQProducerImpl().queryMessageByUniqKey(topic, words[2])));
                break;
            case "time":
                Lines.line().put("offset", admin.searchOffset(queue(words), Long.parseLong(words[4]))).print();
                break;
            case "range":
                Lines.line().put("min", admin.minOffset(queue(words)))
                    .put("max", admin.maxOffset(queue(words))).print();
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static MessageQueue queue(String[] words) {
        return new MessageQueue(words[1], words[2], Integer.parseInt(words[3]));
    }

    private static void found(List<MessageExt> messages) {
        List<String> lines = new ArrayList<>();
        for (MessageExt message : messages) {
            lines.add(Lines.line().put("queue", message.getQueueId()).put("offset", message.getQueueOffset())
                .put("body", new String(message.getBody(), StandardCharsets.UTF_8))
                .put("keys", message.getKeys()).put("stored", message.getStoreTimestamp())
                .put("storeHost", String.valueOf(message.getStoreHost()))
                .put("bornHost", String.valueOf(message.getBornHost())).json());
        }
        Lines.line().raw("found", "[" + String.join(",", lines) + "]").print();
    }
}
