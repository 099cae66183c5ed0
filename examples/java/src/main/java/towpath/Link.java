package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZEvent;
import org.zeromq.ZMQ;

/** One connection to a server. JeroMQ would make the next one without a word, but what was asked for must be asked for again. */
final class Link implements AutoCloseable {
    private static final long MESSAGE_BYTES_MAX = 64 << 20;
    private static final int HEARTBEAT = 2_000; // ms
    private static final int SILENCE = 8_000; // after which a server that answers no heartbeat counts as lost
    private static final int PAUSE = 300; // between connections
    private static final int LINGER = 1_000;
    private static final String EVENTS = "inproc://events"; // where the dealer says what becomes of its connection

    /** A connection that has ended, or that couldn't be made. */
    static final class Lost extends Exception {
        Lost() {
            super("the connection is lost");
        }
    }

    /** What is done over a connection, and again over the next. */
    interface Session {
        void run(Link link) throws Lost, IOException;
    }

    /** Keys of CURVE, in Z85. */
    record Keys(String own, String secret, String server) {}

    /** Reads keys from files of {@code tow key}: the client's secret key and the server's public key. No files are no keys: null. */
    static Keys readKeys(String[] arguments, int first) throws IOException {
        if (arguments.length == first) {
            return null;
        }
        if (arguments.length != first + 2) {
            throw new IOException("CURVE needs two files: the client's secret key and the server's public key");
        }
        String own = arguments[first];
        return new Keys(field(own, "public-key"), field(own, "secret-key"), field(arguments[first + 1], "public-key"));
    }

    private static String field(String file, String name) throws IOException {
        var line = Pattern.compile("^\\s*" + name + "\\s*=\\s*\"(.{40})\"", Pattern.MULTILINE);
        var found = line.matcher(Files.readString(Path.of(file)));
        if (!found.find()) {
            throw new IOException(file + " has no " + name);
        }
        return found.group(1);
    }

    private final String endpoint;
    private final ZContext context = new ZContext();
    private final ZMQ.Socket dealer = context.createSocket(SocketType.DEALER);
    private final ZMQ.Socket monitor = context.createSocket(SocketType.PAIR);
    private final ZMQ.Poller poller = context.createPoller(2);

    Link(String endpoint, Keys keys) {
        this.endpoint = endpoint;
        context.setLinger(0); // of a connection that is lost
        dealer.setLinger(0);
        dealer.setSndHWM(0); // how much is in flight is up to the programs
        dealer.setMaxMsgSize(MESSAGE_BYTES_MAX);
        dealer.setReconnectIVL(-1);
        dealer.setHeartbeatIvl(HEARTBEAT);
        dealer.setHeartbeatTimeout(SILENCE);
        dealer.setHandshakeIvl(SILENCE);
        if (keys != null) {
            dealer.setCurvePublicKey(ZMQ.Curve.z85Decode(keys.own()));
            dealer.setCurveSecretKey(ZMQ.Curve.z85Decode(keys.secret()));
            dealer.setCurveServerKey(ZMQ.Curve.z85Decode(keys.server()));
        }
        int events = ZMQ.EVENT_DISCONNECTED | ZMQ.EVENT_CLOSED | ZMQ.EVENT_CONNECT_RETRIED
                | ZMQ.HANDSHAKE_FAILED_AUTH | ZMQ.HANDSHAKE_FAILED_PROTOCOL;
        dealer.monitor(EVENTS, events);
        monitor.connect(EVENTS);
        poller.register(dealer, ZMQ.Poller.POLLIN);
        poller.register(monitor, ZMQ.Poller.POLLIN);
        dealer.connect(endpoint);
    }

    /** Queues a message of words and bytes. */
    void send(Object... frames) throws Lost {
        for (int n = 0; n < frames.length; n++) {
            byte[] frame = frames[n] instanceof byte[] bytes ? bytes : frames[n].toString().getBytes(UTF_8);
            // Without a limit to the queue there is only no place for it when there is no connection.
            if (!dealer.send(frame, ZMQ.DONTWAIT | (n + 1 < frames.length ? ZMQ.SNDMORE : 0))) {
                throw new Lost();
            }
        }
    }

    /** The next message; null if none comes in so many ms, of which -1 are without end. */
    List<byte[]> receive(long timeout) throws Lost, IOException {
        poller.poll(timeout);
        // What came before the end counts, so the dealer goes first.
        if (poller.pollin(0)) {
            var frames = new ArrayList<byte[]>();
            do {
                frames.add(dealer.recv());
            } while (dealer.hasReceiveMore());
            return frames;
        }
        if (!poller.pollin(1)) {
            return null;
        }
        var event = ZEvent.recv(monitor);
        switch (event.getEvent()) {
            case HANDSHAKE_FAILED_AUTH -> throw new IOException(
                    endpoint + " refuses us: the client's key, or the server's, isn't the right one");
            case HANDSHAKE_FAILED_PROTOCOL -> throw new IOException(
                    endpoint + " refuses us: only one side has keys, or it isn't Towpath");
            default -> throw new Lost();
        }
    }

    /** Lets the server take what was sent. */
    private void linger() {
        dealer.setLinger(LINGER);
        context.setLinger(LINGER);
    }

    @Override
    public void close() {
        dealer.monitor(null, 0);
        context.close();
    }

    /** Runs a session over a connection, and again over the next when that is lost: to the next endpoint, in turn. */
    static void keep(String[] endpoints, Keys keys, Session session) throws IOException, InterruptedException {
        for (int turn = 0; ; turn++) {
            String endpoint = endpoints[turn % endpoints.length];
            try (var link = new Link(endpoint, keys)) {
                session.run(link);
                link.linger();
                return;
            } catch (Lost lost) {
                System.err.println(endpoint + ": " + lost.getMessage());
            }
            Thread.sleep(PAUSE);
        }
    }

    /** What a main method does. */
    interface Program {
        void run() throws Exception;
    }

    /** Ends the program with status 1 and a line that says why, if it fails. */
    static void main(String[] arguments, int needed, String usage, Program program) {
        try {
            if (arguments.length < needed) {
                throw new IOException("usage: " + usage + " [SECRET-KEY-FILE SERVER-KEY-FILE]");
            }
            program.run();
        } catch (Exception why) {
            System.err.println(why.getMessage());
            System.exit(1);
        }
    }
}
