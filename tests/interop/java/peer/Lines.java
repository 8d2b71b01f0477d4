import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * One JSON object a line on standard output, flushed at once: whatever a test has read was true
 * before this process, or the broker, was killed.
 */
final class Lines {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private final StringBuilder text = new StringBuilder("{");

    static Lines line() {
        return new Lines();
    }

    Lines put(String name, long value) {
        return raw(name, Long.toString(value));
    }

    Lines put(String name, String value) {
        return raw(name, value == null ? "null" : quoted(value));
    }

    /** {@code json} is already JSON. */
    Lines raw(String name, String json) {
        if (text.length() > 1) {
            text.append(',');
        }
        text.append(quoted(name)).append(':').append(json);
        return this;
    }

    String json() {
        return text + "}";
    }

    void print() {
        synchronized (OUT) {
            OUT.println(json());
            OUT.flush();
        }
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
