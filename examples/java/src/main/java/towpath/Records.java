package towpath;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/** Records of numbered requests, from and to bytes. */
final class Records {
    static final String CLIENT = "TWPC02";
    static final String WORKER = "TWPW02";

    private static final int SEVERAL = 1;
    private static final int ATTACHED = 2;
    private static final int PARTIAL = 4;
    static final int VOLATILE = 8;
    static final int RESENT = 16;

    private static final int BODY_FRAMES_MAX = 1000;
    private static final int ATTACH_BYTES = 4096; // larger bodies are a frame of their own
    private static final int BLOCK_BYTES = 256 << 10; // of records that are sent as one message

    private Records() {}

    /** A record of a broker. */
    sealed interface Record {}

    record Welcome(long epoch, int requests, long bytes, boolean journal) implements Record {}

    /** The part is null for a reply's end. */
    record Reply(long number, int status, Integer part, List<byte[]> body) implements Record {}

    record Accepted(long first, int count) implements Record {}

    /** It may be sent again after so many ms, or never: 0. */
    record Refused(long number, int status, int millis, byte[] reason) implements Record {}

    record WorkerWelcome(long epoch) implements Record {}

    record Request(byte[] token, int attempt, int millis, List<byte[]> body) implements Record {}

    record Cancel(byte[] token) implements Record {}

    record Identity(byte[] token, byte[] id) implements Record {}

    record Leave() implements Record {}

    /** A message that isn't as the protocol says. */
    static final class Malformed extends IOException {
        Malformed(String why) {
            super("a message is malformed: " + why);
        }
    }

    /** The records of a message from a broker, to a client or to a worker. */
    static List<Record> decode(List<byte[]> message, String header) throws Malformed {
        if (message.size() < 2 || message.size() > 3 || !new String(message.get(0), UTF_8).equals(header)) {
            throw new Malformed("is it a broker of numbered requests?");
        }
        var reader = new Reader(ByteBuffer.wrap(message.get(1)), message.size() == 3 ? message.get(2) : null);
        var records = new ArrayList<Record>();
        try {
            while (reader.block.hasRemaining()) {
                records.add(header.equals(CLIENT) ? reader.toClient() : reader.toWorker());
            }
        } catch (BufferUnderflowException end) {
            throw new Malformed("a record ends too early");
        }
        if (reader.attached != null) {
            throw new Malformed("a frame that no record announces");
        }
        return records;
    }

    private static final class Reader {
        private final ByteBuffer block;
        private byte[] attached;

        Reader(ByteBuffer block, byte[] attached) {
            this.block = block;
            this.attached = attached;
        }

        Record toClient() throws Malformed {
            int kind = u8();
            return switch (kind) {
                case 0x41 -> new Welcome(block.getLong(), block.getInt(), block.getLong(), (u8() & 1) != 0);
                case 0x42 -> {
                    int flags = u8();
                    long number = block.getLong();
                    int status = u16();
                    Integer part = (flags & PARTIAL) != 0 ? block.getInt() : null;
                    yield new Reply(number, status, part, body(flags, SEVERAL | ATTACHED | PARTIAL));
                }
                case 0x43 -> new Accepted(block.getLong(), block.getInt());
                case 0x44 -> new Refused(block.getLong(), u16(), block.getInt(), bytes(block, u8()));
                default -> throw new Malformed("a record of the kind " + kind);
            };
        }

        Record toWorker() throws Malformed {
            int kind = u8();
            return switch (kind) {
                case 0xC1 -> new WorkerWelcome(block.getLong());
                case 0xC2 -> {
                    int flags = u8();
                    yield new Request(bytes(block, 16), u16(), block.getInt(), body(flags, SEVERAL | ATTACHED));
                }
                case 0xC3 -> new Cancel(bytes(block, 16));
                case 0xC4 -> new Leave();
                case 0xC5 -> new Identity(bytes(block, 16), bytes(block, 16));
                default -> throw new Malformed("a record of the kind " + kind);
            };
        }

        private List<byte[]> body(int flags, int known) throws Malformed {
            int length = block.getInt();
            byte[] body = bytes(block, length);
            if ((flags & ~known) != 0) {
                throw new Malformed("the flags " + flags);
            }
            if ((flags & ATTACHED) != 0) {
                if (length != 0 || attached == null || block.hasRemaining()) {
                    throw new Malformed("a body isn't attached");
                }
                body = attached;
                attached = null;
            }
            return (flags & SEVERAL) != 0 ? split(body) : List.of(body);
        }

        private int u8() {
            return block.get() & 0xff;
        }

        private int u16() {
            return block.getShort() & 0xffff;
        }
    }

    private static byte[] bytes(ByteBuffer from, int count) {
        // A count is without sign on the wire.
        if (count < 0 || count > from.remaining()) {
            throw new BufferUnderflowException();
        }
        var bytes = new byte[count];
        from.get(bytes);
        return bytes;
    }

    /** The frames of a body that has several. */
    private static List<byte[]> split(byte[] body) throws Malformed {
        var rest = ByteBuffer.wrap(body);
        var frames = new ArrayList<byte[]>();
        while (rest.hasRemaining() && frames.size() < BODY_FRAMES_MAX) {
            frames.add(bytes(rest, rest.getInt()));
        }
        if (frames.isEmpty() || rest.hasRemaining()) {
            throw new Malformed("frames of a body");
        }
        return frames;
    }

    /** All frames of a body, and what comes before them. */
    static byte[] join(byte[] before, List<byte[]> frames) {
        var joined = new ByteArrayOutputStream();
        joined.writeBytes(before);
        frames.forEach(joined::writeBytes);
        return joined.toByteArray();
    }

    /** A record that is to be sent, and its attachment, or null. */
    record Outgoing(byte[] record, byte[] attachment) {}

    /** Begins a client's connection: numbers below the first are settled. */
    static Outgoing hello(byte[] client, long first) {
        return record(0x01, 24, block -> block.put(client).putLong(first));
    }

    /** A ttl of 0 ms is the broker's. */
    static Outgoing request(long number, String service, int ttl, int flags, List<byte[]> body) {
        byte[] name = service.getBytes(UTF_8);
        var head = record(0x02, 14 + name.length, block -> {
            block.put((byte) flags).putLong(number).putInt(ttl).put((byte) name.length).put(name);
        });
        return withBody(head.record, body);
    }

    /** Lets the broker forget the outcomes of so many numbers. */
    static Outgoing confirm(long first, int count) {
        return record(0x03, 12, block -> block.putLong(first).putInt(count));
    }

    static Outgoing cancel(long number) {
        return record(0x04, 8, block -> block.putLong(number));
    }

    /** Begins a worker's connection: it takes as many requests at a time as its credit. */
    static Outgoing ready(int credit, String service) {
        byte[] name = service.getBytes(UTF_8);
        return record(0x81, 5 + name.length, block -> block.putInt(credit).put((byte) name.length).put(name));
    }

    /** A part that isn't the last has a number; the last has null. */
    static Outgoing reply(byte[] token, int status, Integer part, List<byte[]> body) {
        var head = record(0x82, part == null ? 19 : 23, block -> {
            block.put((byte) (part == null ? 0 : PARTIAL)).put(token).putShort((short) status);
            if (part != null) {
                block.putInt(part);
            }
        });
        return withBody(head.record, body);
    }

    static Outgoing credit(int credit) {
        return record(0x83, 4, block -> block.putInt(credit));
    }

    static Outgoing leaving() {
        return record(0x84, 0, block -> {});
    }

    /** Gives a request back that the worker can't begin. */
    static Outgoing giveBack(byte[] token, String reason) {
        byte[] text = reason.getBytes(UTF_8);
        return record(0x85, 17 + text.length, block -> block.put(token).put((byte) text.length).put(text));
    }

    private interface Writer {
        void write(ByteBuffer block);
    }

    private static Outgoing record(int kind, int size, Writer writer) {
        var block = ByteBuffer.allocate(1 + size).put((byte) kind);
        writer.write(block);
        return new Outgoing(block.array(), null);
    }

    /** Ends a record, whose second byte are its flags. */
    private static Outgoing withBody(byte[] head, List<byte[]> frames) {
        if (frames.size() == 1 && frames.get(0).length > ATTACH_BYTES) {
            head[1] |= ATTACHED;
            return new Outgoing(ByteBuffer.allocate(head.length + 4).put(head).array(), frames.get(0));
        }
        byte[] body = frames.get(0);
        if (frames.size() > 1) {
            head[1] |= SEVERAL;
            var list = ByteBuffer.allocate(frames.stream().mapToInt(frame -> 4 + frame.length).sum());
            frames.forEach(frame -> list.putInt(frame.length).put(frame));
            body = list.array();
        }
        return new Outgoing(ByteBuffer.allocate(head.length + 4 + body.length).put(head).putInt(body.length).put(body).array(), null);
    }

    /** Sends records, many to a message. */
    static final class Blocks {
        private final Link link;
        private final String header;
        private final ByteArrayOutputStream block = new ByteArrayOutputStream();

        Blocks(Link link, String header) {
            this.link = link;
            this.header = header;
        }

        void add(Outgoing record) throws Link.Lost {
            block.writeBytes(record.record);
            if (record.attachment != null) {
                byte[] records = block.toByteArray();
                block.reset();
                link.send(header, records, record.attachment);
            } else if (block.size() > BLOCK_BYTES) {
                flush();
            }
        }

        void flush() throws Link.Lost {
            if (block.size() > 0) {
                byte[] records = block.toByteArray();
                block.reset();
                link.send(header, records);
            }
        }
    }
}
