import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Decides transactions as their messages say: the property {@code local} is commit, rollback, unknown
 * or hang (never decided, and the sender waits for ever), {@code check} is what to answer to each
 * check-back with {@code +} between; the last counts for all further ones.
 */
final class Deciding implements TransactionListener {
    private final String name;
    private final Map<String, Integer> checks = new ConcurrentHashMap<>();

    Deciding(String name) {
        this.name = name;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        String decision = message.getUserProperty("local");
        Features.event("local", name).put("body", Given.body(message)).put("decision", decision)
            .put("transaction", message.getTransactionId()).print();
        if (decision.equals("hang")) {
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException end) {
                Thread.currentThread().interrupt();
            }
        }
        return state(decision);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int count = checks.merge(Given.body(message), 1, Integer::sum);
        String[] decisions = message.getUserProperty("check").split("\\+");
        String decision = decisions[Math.min(count, decisions.length) - 1];
        Features.event("check", name).put("decision", decision).raw("message", Given.message(message))
            .put("transaction", message.getTransactionId()).print();
        return state(decision);
    }

    private static LocalTransactionState state(String decision) {
        switch (decision) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }
}
