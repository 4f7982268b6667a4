import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.catalina.AccessLog;
import org.apache.catalina.Context;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.connector.Request;
import org.apache.catalina.connector.Response;
import org.apache.catalina.startup.Tomcat;
import org.apache.catalina.valves.ValveBase;
import org.apache.coyote.http2.Http2Protocol;

/**
 * A Tomcat that says which servlet a request came to. Like the CWMS Data API it
 * has the context /cwms-data, one mapping for each resource, and HTTP/2 as an
 * upgrade. Arguments: a directory to work in, then the resources. It prints the
 * ports of three connectors, which differ in what they do with an encoded slash:
 * reject (as shipped), decode, passthrough. Each answer says how many requests were
 * ended before it, good or bad. It ends with its standard input.
 */
public class Echo extends HttpServlet {
  private final String name;

  Echo(String name) {
    this.name = name;
  }

  @Override
  protected void service(HttpServletRequest q, HttpServletResponse a) throws IOException {
    String path = q.getServletPath() + (q.getPathInfo() == null ? "" : q.getPathInfo());
    a.setContentType("application/json");
    a.setCharacterEncoding("UTF-8");
    // What is asked by the proxy itself carries no decision.
    if (path.equals("/user/profile") && q.getHeader("x-cwms-auth-context") == null && q.getHeader("authorization") != null) {
      a.getWriter().print("{\"user-name\":\"HECADMIN\",\"roles\":{\"HQ\":[\"system_admin\"]}}");
      return;
    }
    a.getWriter().print("{\"servlet\":" + quote(name) + ",\"path\":" + quote(path) + ",\"uri\":" + quote(q.getRequestURI())
        + ",\"protocol\":" + quote(q.getProtocol()) + ",\"before\":" + Count.seen.get() + "}");
  }

  /** What a connector has read as a request, be it good or bad. */
  private static class Count extends ValveBase implements AccessLog {
    private static final AtomicLong seen = new AtomicLong();

    Count() {
      super(true);
    }

    @Override
    public void invoke(Request q, Response a) throws IOException, ServletException {
      getNext().invoke(q, a);
    }

    @Override
    public void log(Request q, Response a, long time) {
      seen.incrementAndGet();
    }

    @Override
    public void setRequestAttributesEnabled(boolean enabled) {}

    @Override
    public boolean getRequestAttributesEnabled() {
      return false;
    }
  }

  private static String quote(String s) {
    StringBuilder b = new StringBuilder("\"");
    for (char c : s.toCharArray()) {
      if (c < ' ' || c > '~' || c == '"' || c == '\\') {
        b.append(String.format("\\u%04x", (int) c));
      } else {
        b.append(c);
      }
    }
    return b.append('"').toString();
  }

  public static void main(String[] args) throws Exception {
    Tomcat tomcat = new Tomcat();
    tomcat.setBaseDir(args[0]);
    String[] modes = {"reject", "decode", "passthrough"};
    Connector[] connectors = new Connector[modes.length];
    for (int i = 0; i < modes.length; i++) {
      Connector c = new Connector();
      c.setPort(0);
      c.setProperty("address", "127.0.0.1");
      c.setEncodedSolidusHandling(modes[i]);
      c.addUpgradeProtocol(new Http2Protocol());
      tomcat.getService().addConnector(c);
      connectors[i] = c;
    }
    tomcat.getEngine().getPipeline().addValve(new Count());
    Context context = tomcat.addContext("/cwms-data", args[0]);
    for (int i = 1; i < args.length; i++) {
      Tomcat.addServlet(context, args[i], new Echo(args[i]));
      context.addServletMappingDecoded("/" + args[i] + "/*", args[i]);
    }
    Tomcat.addServlet(context, "other", new Echo("other"));
    context.addServletMappingDecoded("/*", "other");
    tomcat.start();
    for (Connector c : connectors) {
      System.out.println(c.getLocalPort());
    }
    System.out.flush();
    while (System.in.read() >= 0) {
    }
    System.exit(0);
  }
}
