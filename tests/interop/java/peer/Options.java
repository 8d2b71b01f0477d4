import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
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

    /**
     * Over TLS, gives each call half a minute in place of three seconds. The first one waits for the
     * virtual machine too, which loads and interprets all of TLS: two to ten seconds on busy processors,
     * of which a server has milliseconds (README.md). It is still one try, so a handshake that is lost
     * ends it. Clients of 4.4 have no such option; their consumers start without a route.
     */
    static void bePatientOverTls(ClientConfig client) throws ReflectiveOperationException {
        if (!Boolean.getBoolean("tls.enable")) {
            return;
        }
        try {
            ClientConfig.class.getMethod("setMqClientApiTimeout", int.class).invoke(client, 30_000);
        } catch (NoSuchMethodException old) {
            return;
        }
    }
}
