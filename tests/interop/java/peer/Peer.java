/**
 * The Java peer of the interop tests, compiled against each client generation. Its command line and
 * its output are those of every other peer: see tests/interop/README.md.
 */
public final class Peer {
    private Peer() {
    }

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0); // clients leave non-daemon threads behind
    }

    private static void run(String[] args) throws Exception {
        Options options = new Options(args);
        switch (args[0]) {
            case "produce":
                new Produce(options).run();
                break;
            case "consume":
                new Consume(options).run();
                break;
            case "query":
                new Query(options).run();
                break;
            default:
                throw new IllegalArgumentException("produce, consume or query, not " + args[0]);
        }
    }
}
