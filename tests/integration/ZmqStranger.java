// A program that knows nothing of p2pmsg, on JeroMQ, for tests of bridges.
//
//   java ZmqStranger KIND ENDPOINT COUNT
//
// KIND pub or push: connects and sends COUNT messages of two parts, "t" and a number from 0 on.
// KIND sub or pull: connects and prints COUNT messages, a line each, their parts separated by spaces.

import org.zeromq.ZMQ;

public class ZmqStranger {
    public static void main(String[] arguments) throws Exception {
        String kind = arguments[0];
        int count = Integer.parseInt(arguments[2]);
        ZMQ.Context context = ZMQ.context(1);
        ZMQ.Socket socket = context.socket(typeOf(kind));
        if (kind.equals("sub")) {
            socket.subscribe(new byte[0]);
        }
        socket.connect(arguments[1]);
        if (kind.equals("pub") || kind.equals("push")) {
            if (kind.equals("pub")) {
                socket.recv();  // somebody has subscribed
            }
            for (int number = 0; number < count; number++) {
                socket.sendMore("t");
                socket.send(Integer.toString(number));
            }
        } else {
            for (int number = 0; number < count; number++) {
                StringBuilder line = new StringBuilder(socket.recvStr());
                while (socket.hasReceiveMore()) {
                    line.append(' ').append(socket.recvStr());
                }
                System.out.println(line);
            }
        }
        socket.close();
        context.term();  // waits until all is sent
    }

    private static int typeOf(String kind) {
        switch (kind) {
            case "pub": return ZMQ.XPUB;
            case "push": return ZMQ.PUSH;
            case "sub": return ZMQ.SUB;
            default: return ZMQ.PULL;
        }
    }
}
