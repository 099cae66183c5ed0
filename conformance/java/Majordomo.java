import java.util.Arrays;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZFrame;
import org.zeromq.ZMQ;
import org.zeromq.ZMsg;

/** Majordomo clients and a worker with JeroMQ, from the tables of the protocol: request|work ENDPOINT SERVICE. */
public final class Majordomo {
    private static final int REQUESTS = 50;
    private static final int TIMEOUT_MS = 15_000;

    public static void main(String[] arguments) {
        try (ZContext context = new ZContext()) {
            context.setLinger(0);
            if (arguments[0].equals("work")) {
                work(context, arguments[1], arguments[2]);
            } else {
                requestOneByOne(context, arguments[1], arguments[2]);
                requestAllAtOnce(context, arguments[1], arguments[2]);
            }
        }
    }

    /** MDP/0.1: sends requests one after another and expects each back as it was. */
    private static void requestOneByOne(ZContext context, String endpoint, String service) {
        ZMQ.Socket socket = connect(context, SocketType.REQ, endpoint);
        for (int index = 0; index < REQUESTS; index++) {
            ZMsg request = ZMsg.newStringMsg("MDPC01", service);
            body(index).forEach(request::add);
            request.send(socket, false);
            expect(request, receive(socket));
        }
        socket.close();
    }

    /** MDP/0.2: sends them all, and expects the echoes of one worker in the same order. */
    private static void requestAllAtOnce(ZContext context, String endpoint, String service) {
        ZMQ.Socket socket = connect(context, SocketType.DEALER, endpoint);
        for (int index = 0; index < REQUESTS; index++) {
            message("MDPC02", 1, service, body(index)).send(socket);
        }
        for (int index = 0; index < REQUESTS; index++) {
            expect(message("MDPC02", 3, service, body(index)), receive(socket));
        }
        socket.close();
    }

    /** MDP/0.1: echoes what it is asked for, until it is killed. */
    private static void work(ZContext context, String endpoint, String service) {
        ZMQ.Socket socket = connect(context, SocketType.DEALER, endpoint);
        socket.setReceiveTimeOut(-1);
        ZMsg ready = message("MDPW01", 1, service, new ZMsg());
        ready.addFirst("");
        ready.send(socket);
        while (true) {
            ZMsg message = receive(socket);
            message.pop();
            ZFrame header = message.pop();
            int command = message.pop().getData()[0];
            ZMsg answer = new ZMsg();
            if (command == 2) {
                answer.add(new byte[] {3});
                message.forEach(answer::add);
            } else if (command == 4) {
                answer.add(new byte[] {4});
            } else {
                throw new IllegalStateException("command " + command);
            }
            answer.addFirst(header.getData());
            answer.addFirst("");
            answer.send(socket);
        }
    }

    /** Three frames, of which one is empty and one grows. */
    private static ZMsg body(int index) {
        String text = "request " + index;
        return ZMsg.newStringMsg(text, "", text.repeat(index * index));
    }

    private static ZMsg message(String header, int command, String service, ZMsg body) {
        ZMsg message = new ZMsg();
        message.add(header);
        message.add(new byte[] {(byte) command});
        message.add(service);
        body.forEach(message::add);
        return message;
    }

    private static ZMQ.Socket connect(ZContext context, SocketType type, String endpoint) {
        ZMQ.Socket socket = context.createSocket(type);
        socket.setReceiveTimeOut(TIMEOUT_MS);
        socket.connect(endpoint);
        return socket;
    }

    private static ZMsg receive(ZMQ.Socket socket) {
        ZMsg message = ZMsg.recvMsg(socket);
        if (message == null) {
            throw new IllegalStateException("nothing came");
        }
        return message;
    }

    private static void expect(ZMsg expected, ZMsg found) {
        if (!Arrays.deepEquals(bytes(expected), bytes(found))) {
            throw new IllegalStateException("not " + expected + " but " + found);
        }
    }

    private static byte[][] bytes(ZMsg message) {
        return message.stream().map(ZFrame::getData).toArray(byte[][]::new);
    }
}
