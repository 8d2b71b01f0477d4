import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Any number of clients in one process, led from standard input: a Java process takes a second to
 * start, and a test may need five clients of two brokers.
 *
 * <pre>
 * NUMBER  CLIENT  WORD  --name value ...        with tabs between; each is done in a thread of its own
 *
 * producer, consumer, puller, poller            makes a client of that name (Producing, Pushing, ...)
 * close                                         ends it
 * any other word                                is for the client: see act() of its class
 * </pre>
 *
 * The answer is a line {@code {"did":NUMBER,...}}, with {@code error}, {@code code} and {@code text}
 * where it failed. What clients are given comes in lines {@code {"event":WHAT,"client":NAME,...}}.
 */
public final class Features {
    private static final long REACHED_MS = 120_000;
    private static final Map<String, Client> CLIENTS = new ConcurrentHashMap<>();

    private Features() {
    }

    public static void main(String[] args) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        Lines.line().put("ready", 1).print();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            threads.execute(() -> answer(words));
        }
        System.exit(0); // clients leave non-daemon threads behind
    }

    /**
     * Without the pauses of half a minute: a producer of transactions is not asked about any before
     * its first heartbeat behind its first message, and a consumer that knows no route of its group's
     * retry topic yet asks for it again. No busy machine is too slow for it. Two more things are
     * properties, see tests/interop/features.py.
     */
    static void hasten(ClientConfig client) {
        client.setHeartbeatBrokerInterval(500);
        client.setPollNameServerInterval(500);
        client.setMqClientApiTimeout(30_000);
    }

    /**
     * What a name server was asked for, when it could be asked: whoever finds its connection being made
     * by another thread waits for three seconds, by no option more.
     */
    static <T> T insist(Callable<T> asked) throws Exception {
        long until = System.currentTimeMillis() + REACHED_MS;
        while (true) {
            try {
                return asked.call();
            } catch (MQClientException failure) {
                boolean unreached = failure.getCause() instanceof RemotingException;
                if (!unreached || System.currentTimeMillis() > until) {
                    throw failure;
                }
            }
        }
    }

    static Lines event(String what, String client) {
        return Lines.line().put("event", what).put("client", client);
    }

    static Client client(String name) {
        Client found = CLIENTS.get(name);
        if (found == null) {
            throw new IllegalArgumentException("no client " + name);
        }
        return found;
    }

    private static void answer(String[] words) {
        Lines answer = Lines.line().put("did", Integer.parseInt(words[0]));
        String name = words[1];
        Options options = new Options(Arrays.copyOfRange(words, 2, words.length));
        try {
            switch (words[2]) {
                case "producer":
                    CLIENTS.put(name, new Producing(name, options));
                    break;
                case "consumer":
                    CLIENTS.put(name, new Pushing(name, options));
                    break;
                case "puller":
                    CLIENTS.put(name, new Pulling(name, options));
                    break;
                case "poller":
                    CLIENTS.put(name, new Polling(name, options));
                    break;
                case "close":
                    client(name).close();
                    CLIENTS.remove(name);
                    break;
                default:
                    client(name).act(words[2], options, answer);
            }
        } catch (Throwable failure) {
            failed(answer, failure);
        }
        answer.print();
    }

    static void failed(Lines line, Throwable thrown) {
        // What 4.x does not know is called by its name.
        Throwable failure = thrown instanceof InvocationTargetException ? thrown.getCause() : thrown;
        int code = 0;
        String text = failure.getMessage();
        if (failure instanceof MQBrokerException) {
            code = ((MQBrokerException) failure).getResponseCode();
            text = ((MQBrokerException) failure).getErrorMessage();
        } else if (failure instanceof MQClientException) {
            code = ((MQClientException) failure).getResponseCode();
            text = ((MQClientException) failure).getErrorMessage();
        } else if (failure instanceof RequestTimeoutException) {
            code = ((RequestTimeoutException) failure).getResponseCode();
        } else {
            failure.printStackTrace();
        }
        if (failure.getCause() != null) {
            text += " (" + failure.getCause() + ")";
        }
        line.put("error", failure.getClass().getSimpleName()).put("code", code).put("text", text);
    }

    /** Made, and started, by its constructor. */
    interface Client {
        /** Does what the word says, and puts what came of it into the answer. */
        void act(String word, Options options, Lines answer) throws Exception;

        void close() throws Exception;
    }
}
