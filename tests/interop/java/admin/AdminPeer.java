import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * mqadmin, many commands in one JVM, and clients for it to look at. A line of standard input is
 * words with tabs between, each percent-encoded; the answer is one JSON object a line.
 *
 * <pre>
 * names                                    {"names":"..."}, what mqadmin knows, blanks between
 * run      LINES WORD...                   {"out":"...","err":"..."} of mqadmin with these words;
 *                                          with LINES above 0 it is interrupted after so many lines
 *                                          of output, because it would never end
 * consumer GROUP TOPIC TAGS INSTANCE COUNT {"id":"..."}, a push consumer's client id, when it has
 *                                          had COUNT messages; it goes on running
 * expect   COUNT                           {"expected":"..."}, messages that it shall have from now
 * expected                                 {"had":"..."} when it has had them
 * hang     GROUP TOPIC INSTANCE            {"id":"..."} when its listener has been given a message,
 *                                          with which it never comes to an end
 * producer GROUP TOPIC INSTANCE            {"id":"..."} when a producer has told the broker of itself
 * end      INSTANCE                        {"ended":"..."} when that client has left
 * </pre>
 *
 * Run from source, without a build.
 */
public final class AdminPeer {
    private static final PrintStream ANSWERS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final int WAIT_S = 60;
    private static final Map<String, Runnable> CLIENTS = new HashMap<>();
    private static volatile CountDownLatch expected = new CountDownLatch(0);
    private static DefaultMQPushConsumer lastConsumer;

    public static void main(String[] args) throws Exception {
        say("ready", "1");
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            for (int i = 0; i < words.length; i++) {
                words[i] = URLDecoder.decode(words[i], StandardCharsets.UTF_8);
            }
            try {
                answer(words);
            } catch (Exception failure) {
                say("error", String.valueOf(failure));
            }
        }
        System.exit(0); // monitoring and clients leave threads behind
    }

    private static void answer(String[] words) throws Exception {
        switch (words[0]) {
            case "names":
                say("names", Commands.names());
                break;
            case "run":
                run(Integer.parseInt(words[1]), Arrays.copyOfRange(words, 2, words.length));
                break;
            case "consumer":
                say("id", consumer(words, Integer.parseInt(words[5])));
                break;
            case "expect":
                expected = new CountDownLatch(Integer.parseInt(words[1]));
                say("expected", words[1]);
                break;
            case "expected":
                awaitExpected();
                say("had", "all");
                break;
            case "hang":
                say("id", hang(words[1], words[2], words[3]));
                break;
            case "producer":
                say("id", producer(words[1], words[2], words[3]));
                break;
            case "end":
                CLIENTS.remove(words[1]).run();
                say("ended", words[1]);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void run(int lines, String[] words) throws InterruptedException {
        Captured out = new Captured(lines);
        Captured err = new Captured(0);
        PrintStream oldOut = System.out;
        PrintStream oldErr = System.err;
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        try {
            Commands.forget(); // some keep what they have shut down; main0 makes all of them anew
            Thread command = new Thread(() -> MQAdminStartup.main0(words, null), "mqadmin");
            command.start();
            if (lines > 0) {
                out.enough.await(WAIT_S, TimeUnit.SECONDS);
                command.interrupt();
            }
            command.join();
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(oldOut);
            System.setErr(oldErr);
        }
        say("out", out.text(), "err", err.text());
    }

    private static String consumer(String[] words, int count) throws Exception {
        expected = new CountDownLatch(count);
        lastConsumer = new DefaultMQPushConsumer(words[1]);
        lastConsumer.setInstanceName(words[4]);
        lastConsumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        lastConsumer.subscribe(words[2], words[3]);
        lastConsumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> expected.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        CLIENTS.put(words[4], lastConsumer::shutdown);
        lastConsumer.start();
        awaitExpected();
        return lastConsumer.buildMQClientId();
    }

    private static String hang(String group, String topic, String instance) throws Exception {
        CountDownLatch given = new CountDownLatch(1);
        CountDownLatch end = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setInstanceName(instance);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            given.countDown();
            try {
                end.await();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        CLIENTS.put(instance, () -> {
            end.countDown();
            consumer.shutdown();
        });
        consumer.start();
        if (!given.await(WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no message came");
        }
        return consumer.buildMQClientId();
    }

    /** The broker is told then, too, and of the queue for retries as well. */
    private static void awaitExpected() throws InterruptedException {
        if (!expected.await(WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(expected.getCount() + " messages did not come");
        }
        RebalanceImpl rebalance = lastConsumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (rebalance.getProcessQueueTable().keySet().stream().map(MessageQueue::getTopic)
            .distinct().count() < rebalance.getSubscriptionInner().size()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("a topic has no queue for the consumer");
            }
            Thread.sleep(20);
        }
        lastConsumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
    }

    private static String producer(String group, String topic, String instance) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setInstanceName(instance);
        CLIENTS.put(instance, producer::shutdown);
        producer.start();
        MQClientInstance client = producer.getDefaultMQProducerImpl().getmQClientFactory();
        client.updateTopicRouteInfoFromNameServer(topic);
        client.sendHeartbeatToAllBrokerWithLock();
        return producer.buildMQClientId();
    }

    /** The list that mqadmin looks commands up in, which its subclasses alone may see. */
    private static final class Commands extends MQAdminStartup {
        static void forget() {
            subCommandList.clear();
        }

        static String names() {
            forget();
            initCommand();
            StringJoiner names = new StringJoiner(" ");
            for (SubCommand one : subCommandList) {
                names.add(one.commandName());
            }
            return names.toString();
        }
    }

    /** Keeps what is printed, and tells when there are enough lines of it. */
    private static final class Captured extends ByteArrayOutputStream {
        private final CountDownLatch enough;

        Captured(int lines) {
            enough = new CountDownLatch(lines);
        }

        @Override
        public synchronized void write(int one) {
            super.write(one);
            if (one == '\n') {
                enough.countDown();
            }
        }

        @Override
        public synchronized void write(byte[] some, int from, int size) {
            for (int i = from; i < from + size; i++) {
                write(some[i]);
            }
        }

        synchronized String text() {
            return toString(StandardCharsets.UTF_8);
        }
    }

    private static void say(String... pairs) {
        StringBuilder text = new StringBuilder("{");
        for (int i = 0; i < pairs.length; i += 2) {
            text.append(i == 0 ? "" : ",").append(quoted(pairs[i])).append(':')
                .append(quoted(pairs[i + 1]));
        }
        ANSWERS.println(text.append('}'));
        ANSWERS.flush();
    }

    private static String quoted(String value) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < 32) {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
