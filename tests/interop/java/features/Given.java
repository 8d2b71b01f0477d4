import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that a client was given, as JSON, with all their properties. */
final class Given {
    private Given() {
    }

    static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static String message(MessageExt message) {
        Lines properties = Lines.line();
        for (Map.Entry<String, String> entry : new TreeMap<>(message.getProperties()).entrySet()) {
            properties.put(entry.getKey(), entry.getValue());
        }
        return Lines.line().put("topic", message.getTopic()).put("queue", message.getQueueId())
            .put("offset", message.getQueueOffset()).put("body", body(message))
            .put("tag", message.getTags()).put("keys", message.getKeys()).put("id", message.getMsgId())
            .put("born", message.getBornTimestamp()).put("stored", message.getStoreTimestamp())
            .put("given", System.currentTimeMillis()).put("reconsume", message.getReconsumeTimes())
            .raw("properties", properties.json()).json();
    }

    static String list(List<MessageExt> messages) {
        List<String> found = new ArrayList<>();
        for (MessageExt message : messages) {
            found.add(message(message));
        }
        return "[" + String.join(",", found) + "]";
    }
}
