import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** Command line of the form {@code command --name value ...}; every value has a default. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] args) {
        for (int i = 1; i + 1 < args.length; i += 2) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("expected --name, got " + args[i]);
            }
            values.put(args[i].substring(2), args[i + 1]);
        }
    }

    String text(String name, String fallback) {
        return values.getOrDefault(name, fallback);
    }

    int number(String name, int fallback) {
        return Integer.parseInt(text(name, Integer.toString(fallback)));
    }

    boolean yes(String name) {
        return text(name, "no").equals("yes");
    }

    /** Signs for the account of {@code --access-key} and {@code --secret-key}; null without one. */
    RPCHook signing() {
        String key = text("access-key", "");
        return key.isEmpty() ? null
            : new AclClientRPCHook(new SessionCredentials(key, text("secret-key", "")));
    }
}
