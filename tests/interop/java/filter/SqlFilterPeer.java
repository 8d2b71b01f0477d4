import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.ComparisonExpression;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.filter.parser.SelectorParserConstants;
import org.apache.rocketmq.filter.parser.Token;

/**
 * Asks RocketMQ's own filter module. A question is a line: the expression, then maps of properties,
 * with tabs between; everything is percent-encoded, a map is {@code name=value&name=value}. The
 * answer is one JSON object with percent-encoded texts: {@code refused}, the reason; or
 * {@code results}, a letter a map (T true, F false, N null, E an exception), and {@code unread}, the
 * first token behind what the parser took for the expression. Maps behind {@code keep:} in the place
 * of an expression are kept, and asked of each expression with {@code kept:} in the place of maps;
 * the colon is in nothing that is encoded. Run from source, without a build.
 */
public final class SqlFilterPeer {
    private static final List<Map<String, String>> KEPT = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        System.out.println("{\"ready\":1}");
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split("\t", -1)));
            System.out.flush();
        }
    }

    private static String answer(String[] fields) {
        if (fields[0].equals("keep:")) {
            KEPT.clear();
            KEPT.addAll(maps(fields));
            return "{\"kept\":\"" + KEPT.size() + "\"}";
        }
        String sql = decoded(fields[0]);
        Expression compiled;
        try {
            compiled = SelectorParser.parse(sql);
        } catch (MQFilterException refused) {
            return "{\"refused\":\"" + encoded(String.valueOf(refused.getCause())) + "\"}";
        }
        StringBuilder results = new StringBuilder();
        boolean ofKept = fields.length == 2 && fields[1].equals("kept:");
        for (Map<String, String> properties : ofKept ? KEPT : maps(fields)) {
            results.append(letter(compiled, properties));
        }
        return "{\"results\":\"" + results + "\",\"unread\":\"" + encoded(unread(sql)) + "\"}";
    }

    private static char letter(Expression compiled, Map<String, String> properties) {
        try {
            Object found = compiled.evaluate(new MessageEvaluationContext(properties));
            return found == null ? 'N' : (Boolean) found ? 'T' : 'F';
        } catch (Exception failed) {
            return 'E';
        }
    }

    /** The parser does not ask for the end of its text, so what it left is asked for here. */
    private static String unread(String sql) {
        ComparisonExpression.CONVERT_STRING_EXPRESSIONS.set(true);
        try {
            SelectorParser parser = new SelectorParser(new StringReader(sql));
            parser.JmsSelector();
            Token next = parser.getNextToken();
            return next.kind == SelectorParserConstants.EOF ? "" : next.image;
        } catch (Exception impossible) {
            throw new IllegalStateException(impossible);
        } finally {
            ComparisonExpression.CONVERT_STRING_EXPRESSIONS.remove();
        }
    }

    private static List<Map<String, String>> maps(String[] fields) {
        List<Map<String, String>> found = new ArrayList<>();
        for (int i = 1; i < fields.length; i++) {
            found.add(properties(fields[i]));
        }
        return found;
    }

    private static Map<String, String> properties(String field) {
        Map<String, String> found = new HashMap<>();
        for (String entry : field.isEmpty() ? new String[0] : field.split("&")) {
            int at = entry.indexOf('=');
            found.put(decoded(entry.substring(0, at)), decoded(entry.substring(at + 1)));
        }
        return found;
    }

    private static String decoded(String text) {
        return URLDecoder.decode(text, StandardCharsets.UTF_8);
    }

    private static String encoded(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8);
    }
}
